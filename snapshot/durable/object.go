package durable

import (
	"bytes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"fmt"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

const (
	headerLength  = 104
	formatVersion = 1
	tagLength     = 16
	maxObject     = 64 << 20 // bytes
)

var magic = []byte("HIBERN8\x00")

// sealed encrypts and decrypts the frames of one object. Methods may be called from many goroutines.
type sealed struct {
	name   objectName
	header [headerLength]byte
	aead   cipher.AEAD
}

// newObject is one that is to be written, with a salt of its own.
func newObject(k *keys, name objectName) *sealed {
	var salt [32]byte
	_, _ = rand.Read(salt[:])
	return objectWith(k, name, salt[:])
}

// objectWith is one whose salt is known.
func objectWith(k *keys, name objectName, salt []byte) *sealed {
	o := &sealed{name: name, aead: k.object(name.kind, salt)}
	h := append(o.header[:0], magic...)
	h = binary.LittleEndian.AppendUint16(h, formatVersion)
	h = append(h, byte(name.kind), 0)
	h = binary.LittleEndian.AppendUint32(h, headerLength)
	h = append(h, k.lineage[:]...)
	h = append(h, name.op[:]...)
	h = binary.LittleEndian.AppendUint64(h, name.epoch)
	h = binary.LittleEndian.AppendUint64(h, name.sequence)
	h = binary.LittleEndian.AppendUint32(h, name.number)
	h = append(h, 0, 0, 0, 0)
	_ = append(h, salt...)
	return o
}

func (o *sealed) salt() []byte { return o.header[72:headerLength] }

// openHeader is objectWith for an object that begins with data, which must be the one of that name.
func openHeader(k *keys, name objectName, data []byte) (*sealed, error) {
	if len(data) < headerLength {
		return nil, truncated(name.String(), "%d bytes, the header alone has %d", len(data), headerLength)
	}
	if !bytes.Equal(data[:8], magic) {
		return nil, corrupt(name.String(), "it doesn't begin as an object of the durable tier")
	}
	if v := binary.LittleEndian.Uint16(data[8:]); v != formatVersion {
		return nil, &snapshot.VersionError{Document: name.String(), Found: int(v), Known: formatVersion}
	}
	o := objectWith(k, name, data[72:headerLength])
	if !bytes.Equal(o.header[:], data[:headerLength]) {
		return nil, fmt.Errorf("%s: %w: its header is of lineage %x, operation %x, number %d: it was exchanged or changed; look for who writes to this place beside us",
			name, ErrForeign, data[16:32], data[32:48], binary.LittleEndian.Uint32(data[64:]))
	}
	return o, nil
}

func (o *sealed) aad(buf *[headerLength + 5]byte, number uint32, last bool) []byte {
	copy(buf[:], o.header[:])
	binary.LittleEndian.PutUint32(buf[headerLength:], number)
	if buf[headerLength+4] = 0; last {
		buf[headerLength+4] = 1
	}
	return buf[:]
}

// seal appends the frame to dst.
func (o *sealed) seal(dst, plain []byte, number uint32, last bool) []byte {
	var aad [headerLength + 5]byte
	var nonce [12]byte
	binary.BigEndian.PutUint32(nonce[8:], number)
	return o.aead.Seal(dst, nonce[:], plain, o.aad(&aad, number, last))
}

// open decrypts a frame in its place.
func (o *sealed) open(frame []byte, number uint32, last bool) ([]byte, error) {
	var aad [headerLength + 5]byte
	var nonce [12]byte
	binary.BigEndian.PutUint32(nonce[8:], number)
	plain, err := o.aead.Open(frame[:0], nonce[:], frame, o.aad(&aad, number, last))
	if err != nil {
		return nil, corrupt(o.name.String(), "frame %d is not what was written", number)
	}
	return plain, nil
}
