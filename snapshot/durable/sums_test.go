package durable

import (
	"hash/crc32"
	"math/rand/v2"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// TestSums: of files of any length, from pieces of any number of pages in any order, without those of zeros.
func TestSums(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	fill := rand.NewChaCha8([32]byte{1})
	for _, size := range []int64{0, 1, 4095, 4096, 5000, snapshot.ChunkSize - 1, snapshot.ChunkSize, snapshot.ChunkSize + 1, 3*snapshot.ChunkSize + 12345} {
		data := make([]byte, size)
		type piece struct{ from, to int64 }
		var pieces []piece
		for at := int64(0); at < size; {
			to := min(size, at+int64(1+random.IntN(400))*pageSize)
			if random.IntN(3) != 0 {
				_, _ = fill.Read(data[at:to])
				pieces = append(pieces, piece{at, to})
			}
			at = to
		}
		s := newSums(size)
		for _, i := range random.Perm(len(pieces)) {
			s.add(data[pieces[i].from:pieces[i].to], pieces[i].from)
		}
		for n := range len(s.chunks) {
			from := int64(n) * snapshot.ChunkSize
			want := crc32.Checksum(data[from:min(size, from+snapshot.ChunkSize)], castagnoli)
			if got := s.chunk(n); got != want {
				t.Errorf("chunk %d of %d bytes: %08x, want %08x", n, size, got, want)
			}
		}
	}
}
