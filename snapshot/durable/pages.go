package durable

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
)

// pageHash tells one page of a lineage from another.
type pageHash [16]byte

// hasher computes page hashes, for one goroutine.
type hasher struct{ buf [32 + pageSize]byte }

func newHasher(k *keys) *hasher {
	h := &hasher{}
	copy(h.buf[:], k.page[:])
	return h
}

func (h *hasher) hash(page []byte) pageHash {
	copy(h.buf[32:], page)
	sum := sha256.Sum256(h.buf[:])
	return pageHash(sum[:16])
}

var zeroPage [pageSize]byte

func isZero(page []byte) bool { return bytes.Equal(page, zeroPage[:]) }

// root is the digest of a file by the hashes of its pages.
type root struct{ h hash.Hash }

func newRoot(size int64) root {
	r := root{sha256.New()}
	r.h.Write(binary.LittleEndian.AppendUint64(nil, uint64(size)))
	return r
}

func (r root) add(p pageHash) { r.h.Write(p[:]) }

func (r root) sum() string { return hex.EncodeToString(r.h.Sum(nil)) }

func pagesOf(size int64) int64 { return (size + pageSize - 1) / pageSize }
