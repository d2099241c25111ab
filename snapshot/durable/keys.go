package durable

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
)

// lineageID is random, made together with the data key.
type lineageID [16]byte

func (id lineageID) String() string { return hex.EncodeToString(id[:]) }

// keys are a lineage's data key and what follows from it.
type keys struct {
	lineage          lineageID
	data             []byte
	page             [32]byte
	headMAC, digests []byte
}

const wrapLength = 32 + 16 // data key, lineage

func newKeys() *keys {
	payload := make([]byte, wrapLength)
	_, _ = rand.Read(payload)
	return keysOf(payload)
}

// keysOf takes what payload returns.
func keysOf(payload []byte) *keys {
	k := &keys{data: payload[:32:32], lineage: lineageID(payload[32:wrapLength])}
	copy(k.page[:], derive(k.data, nil, "hibernate/1 page", 32))
	k.headMAC = derive(k.data, nil, "hibernate/1 head", 32)
	k.digests = derive(k.data, nil, "hibernate/1 digest", 32)
	return k
}

func (k *keys) payload() []byte {
	return append(append(make([]byte, 0, wrapLength), k.data...), k.lineage[:]...)
}

// digest is what tells two snapshots of one sequence apart.
func (k *keys) digest(document []byte) string {
	m := hmac.New(sha256.New, k.digests)
	m.Write(document)
	return hex.EncodeToString(m.Sum(nil)[:16])
}

func (k *keys) object(kind kind, salt []byte) cipher.AEAD {
	info := "hibernate/1 pack"
	if kind == manifestKind {
		info = "hibernate/1 manifest"
	}
	return gcm(derive(k.data, salt, info, 32))
}

func derive(key, salt []byte, info string, length int) []byte {
	out, err := hkdf.Key(sha256.New, key, salt, info, length)
	if err != nil {
		panic(err) // only lengths that are too large, or a FIPS mode that knows no SHA-256
	}
	return out
}

func gcm(key []byte) cipher.AEAD {
	block, err := aes.NewCipher(key)
	if err != nil {
		panic(err) // only a key of another length
	}
	a, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return a
}
