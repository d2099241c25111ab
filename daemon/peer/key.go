package peer

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"os"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Key is by what a daemon is known.
type Key struct {
	certificate tls.Certificate
	Fingerprint string
}

// keyFile is beside the notes about the store.
const keyFile = "peer.key"

// LoadKey reads the key in dir, or makes one there, which only its owner can read.
func LoadKey(dir string) (*Key, error) {
	path := filepath.Join(dir, keyFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		data, err = makeKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("the key of the peer path: %w", err)
	}
	k, err := parseKey(data)
	if err != nil {
		return nil, fmt.Errorf("the key of the peer path, %s: %w: remove it, and a new one is made", path, err)
	}
	return k, nil
}

func makeKey(path string) ([]byte, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, err
	}
	data := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, err
	}
	return data, atomicfile.Write(path, data, 0o600, atomicfile.Options{Sync: true})
}

// parseKey gives the key with a certificate that only carries it: nobody looks at what else that says.
func parseKey(data []byte) (*Key, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("it is no PEM")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	private, ok := parsed.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("it is a %T", parsed)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "hibernated"}, NotBefore: time.Unix(0, 0), NotAfter: time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &Key{certificate: tls.Certificate{Certificate: [][]byte{der}, PrivateKey: private, Leaf: leaf}, Fingerprint: fingerprint(leaf)}, nil
}

// fingerprint of a certificate's key.
func fingerprint(c *x509.Certificate) string {
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// shown is a fingerprint in a message.
func shown(s string) string { return s[:min(len(s), 16)] }
