package durable

import (
	"hash/crc32"
	"sync/atomic"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// sums gathers the CRC32C of a file's chunks from that of their pieces, which come once each, in any order; those of zeros needn't come.
//
// Without the inversion at its beginning and end a CRC is linear: that of a chunk is the sum of its pieces', each multiplied by x to the
// number of bits that follow it. Chunks are multiples of pages, but for the last.
type sums struct {
	size   int64
	chunks []atomic.Uint32
}

func newSums(size int64) *sums {
	return &sums{size: size, chunks: make([]atomic.Uint32, (size+snapshot.ChunkSize-1)/snapshot.ChunkSize)}
}

// add takes in what is at off, a multiple of a page. Safe for many goroutines.
func (s *sums) add(data []byte, off int64) {
	for len(data) > 0 {
		chunk := off / snapshot.ChunkSize
		end := min((chunk+1)*snapshot.ChunkSize, s.size)
		piece := data[:min(int64(len(data)), end-off)]
		data, off = data[len(piece):], off+int64(len(piece))
		sum := shifted(^crc32.Update(^uint32(0), castagnoli, piece), end-off)
		for was := s.chunks[chunk].Load(); !s.chunks[chunk].CompareAndSwap(was, was^sum); was = s.chunks[chunk].Load() {
		}
	}
}

// chunk is the CRC32C of a chunk, once all its pieces have been added.
func (s *sums) chunk(n int) uint32 {
	length := min(snapshot.ChunkSize, s.size-int64(n)*snapshot.ChunkSize)
	return ^(s.chunks[n].Load() ^ shifted(^uint32(0), length))
}

// Polynomials over GF(2), modulo Castagnoli's, as it is reflected: the highest bit is that of x⁰.
const one = uint32(1) << 31

var (
	// doubled has x to 8 × 2ⁱ: a shift by so many bytes.
	doubled = doublings()
	// byPages has x to the bits of i pages.
	byPages = pageShifts()
)

func product(a, b uint32) (p uint32) {
	for ; a != 0; a <<= 1 {
		if a&one != 0 {
			p ^= b
		}
		b = b>>1 ^ crc32.Castagnoli&-(b&1)
	}
	return p
}

func doublings() (out [63]uint32) {
	out[0] = one >> 8
	for i := 1; i < len(out); i++ {
		out[i] = product(out[i-1], out[i-1])
	}
	return out
}

func pageShifts() (out [snapshot.ChunkSize/pageSize + 1]uint32) {
	out[0] = one
	for i := 1; i < len(out); i++ {
		out[i] = product(out[i-1], doubled[12])
	}
	return out
}

// shifted is a sum after so many zero bytes, at most a chunk of them.
func shifted(sum uint32, bytes int64) uint32 {
	if sum == 0 {
		return 0
	}
	sum = product(byPages[bytes/pageSize], sum)
	for i, left := 0, bytes%pageSize; left != 0; i, left = i+1, left>>1 {
		if left&1 != 0 {
			sum = product(doubled[i], sum)
		}
	}
	return sum
}
