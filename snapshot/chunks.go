package snapshot

import (
	"context"
	"fmt"
	"hash/crc32"
	"io"
	"runtime"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
)

const (
	// maxWorkers computes checksums at about 12 GB/s each from the page
	// cache, which two of them nearly double.
	maxWorkers = 2
	// readSize fits a core's own cache, so that the checksum runs over what
	// the copy just brought there. Mapping the file instead is two to three
	// times slower, by its page faults.
	readSize = 256 << 10
)

// beside is how many workers check a snapshot while a sandbox boots: one core
// is the boot's. With both of two cores taken the boot of 50 ms lasts 15 ms
// longer at 128 MiB, and one worker is done before it anyhow.
func beside() int { return max(1, min(maxWorkers, runtime.NumCPU()-1)) }

// eachChunk reads all files once and calls fn with the checksum of each
// chunk, in no order and from as many goroutines as workers says. It stops at
// the first error.
func (im image) eachChunk(ctx context.Context, workers int, fn func(file, chunk int, sum uint32) error) error {
	first := make([]int, len(im)+1) // of each file, in the row of all chunks
	for i, f := range im {
		first[i+1] = first[i] + File{Size: f.size}.chunks()
	}
	total := first[len(im)]
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(workers, max(total, 1)) {
		g.Go(func() error {
			buf := make([]byte, readSize)
			file := 0
			for n := int(next.Add(1)) - 1; n < total; n = int(next.Add(1)) - 1 {
				if err := context.Cause(ctx); err != nil {
					return err
				}
				for n >= first[file+1] {
					file++
				}
				chunk := n - first[file]
				sum, err := im[file].checksum(chunk, buf)
				if err != nil {
					return err
				}
				if err := fn(file, chunk, sum); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return g.Wait()
}

// checksum reads one chunk. A file that has become shorter is ErrTruncated.
func (f imageFile) checksum(chunk int, buf []byte) (uint32, error) {
	off := int64(chunk) * ChunkSize
	end := min(off+ChunkSize, f.size)
	var sum uint32
	for off < end {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), end-off)], off)
		sum = crc32.Update(sum, castagnoli, buf[:n])
		off += int64(n)
		if err == io.EOF && off < end {
			return 0, truncated(f.name, "ends at %d of %d bytes", off, f.size)
		}
		if err != nil && err != io.EOF {
			return 0, fmt.Errorf("read chunk %d: %w", chunk, err)
		}
	}
	return sum, nil
}
