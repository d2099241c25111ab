package pages

import (
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
)

const chunk = 4096

// disk is a blob that counts reads and may fail.
type disk struct {
	data  []byte
	reads atomic.Int64
	err   error
}

func (d *disk) ReadAt(p []byte, off int64) (int, error) {
	d.reads.Add(1)
	if d.err != nil {
		return 0, d.err
	}
	return bytes.NewReader(d.data).ReadAt(p, off)
}

func (d *disk) Close() error { return nil }

func opened(t *testing.T, s *Store, size int) (*Open, *disk) {
	t.Helper()
	d := &disk{data: make([]byte, size)}
	rand.NewChaCha8([32]byte{byte(size)}).Read(d.data)
	f := File{Name: "pages.img", Size: int64(size)}
	for at := 0; at < size; at += chunk {
		f.CRC32C = append(f.CRC32C, crc32.Checksum(d.data[at:min(at+chunk, size)], castagnoli))
	}
	o, err := s.Open(f, d)
	if err != nil {
		t.Fatal(err)
	}
	return o, d
}

func read(o *Open, off, n int64) ([]byte, error) {
	var got []byte
	done, err := o.Each(off, n, func(p []byte) error { got = append(got, p...); return nil })
	if int64(len(got)) != done {
		return got, fmt.Errorf("told %d of %d bytes", done, len(got))
	}
	return got, err
}

// Any part is what the file has; past its end is io.EOF.
func TestParts(t *testing.T) {
	const size = 5*chunk + 100
	s := NewStore(chunk, 2)
	o, d := opened(t, s, size)
	for _, c := range [][2]int64{{0, 1}, {0, size}, {chunk - 1, 2}, {chunk, chunk}, {3 * chunk, 2*chunk + 100}, {size - 1, 1}} {
		got, err := read(o, c[0], c[1])
		if err != nil || !bytes.Equal(got, d.data[c[0]:c[0]+c[1]]) {
			t.Errorf("%d bytes from %d: wrong, or %v", c[1], c[0], err)
		}
	}
	if got, err := read(o, size-10, 100); err != io.EOF || !bytes.Equal(got, d.data[size-10:]) {
		t.Errorf("at the end: %d bytes, %v", len(got), err)
	}
	if got, err := read(o, size+chunk, 1); err != io.EOF || len(got) != 0 {
		t.Errorf("behind the end: %d bytes, %v", len(got), err)
	}
}

// Of a chunk that is wrong nothing is handed over, of the others all is.
func TestNothingOfABadChunk(t *testing.T) {
	s := NewStore(chunk, 3)
	o, d := opened(t, s, 4*chunk)
	d.data[2*chunk+chunk-1] ^= 1
	got, err := read(o, 0, 4*chunk)
	var corrupt *CorruptError
	if !errors.As(err, &corrupt) || corrupt.Chunk != 2 || corrupt.File != "pages.img" {
		t.Fatalf("error %v", err)
	}
	if !bytes.Equal(got, d.data[:2*chunk]) {
		t.Fatalf("%d bytes were handed over", len(got))
	}
	d.data[2*chunk+chunk-1] ^= 1 // a failure is not kept
	if _, err := read(o, 2*chunk, chunk); err != nil {
		t.Fatal(err)
	}
}

// A file that has become shorter is corrupt; one that can't be read isn't.
func TestKindsOfFailure(t *testing.T) {
	s := NewStore(chunk, 2)
	o, d := opened(t, s, 2*chunk)
	whole := d.data
	d.data = whole[:chunk+1]
	var corrupt *CorruptError
	if _, err := read(o, chunk, 1); !errors.As(err, &corrupt) {
		t.Errorf("a shorter file: %v", err)
	}
	d.data, d.err = whole, io.ErrClosedPipe
	if _, err := read(o, 0, 1); !errors.Is(err, io.ErrClosedPipe) || errors.As(err, &corrupt) {
		t.Errorf("a disk that fails: %v", err)
	}
}

// A neighbour's chunk is not read twice, and readers share one that is being read.
func TestChunksAreShared(t *testing.T) {
	s := NewStore(chunk, 4)
	o, d := opened(t, s, 8*chunk)
	for off := int64(100); off+chunk <= 8*chunk; off += chunk {
		if _, err := read(o, off, chunk); err != nil {
			t.Fatal(err)
		}
	}
	if n := d.reads.Load(); n != 8 {
		t.Errorf("%d reads of 8 chunks", n)
	}
}

// Many readers of few buffers get what is right, and no more memory is taken.
func TestFewBuffersForMany(t *testing.T) {
	const size, readers, buffers = 64 * chunk, 8, 3
	s := NewStore(chunk, buffers)
	o, d := opened(t, s, size)
	var wg sync.WaitGroup
	for i := range readers {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 1))
			for range 300 {
				off := r.Int64N(size)
				n := 1 + r.Int64N(min(3*chunk, size-off))
				if got, err := read(o, off, n); err != nil || !bytes.Equal(got, d.data[off:off+n]) {
					t.Errorf("%d bytes from %d: wrong, or %v", n, off, err)
					return
				}
			}
		})
	}
	wg.Wait()
	taken := 0
	for _, b := range s.all {
		taken += cap(b.data)
		if b.users != 0 {
			t.Error("a buffer is still in use")
		}
	}
	if taken > buffers*chunk {
		t.Errorf("%d bytes of buffers", taken)
	}
}

func TestSumsMustFit(t *testing.T) {
	s := NewStore(chunk, 1)
	if _, err := s.Open(File{Name: "f", Size: chunk + 1, CRC32C: make([]uint32, 1)}, &disk{}); err == nil {
		t.Error("one checksum for two chunks is taken")
	}
}

// Only a regular file of the directory itself is opened.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pages.img"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, "pages.img"), filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	d := Directory(filepath.Join(dir))
	b, err := d.Open("pages.img")
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	for _, name := range []string{"link", ".", "none"} {
		if b, err := d.Open(name); err == nil {
			_ = b.Close()
			t.Errorf("%s is opened", name)
		}
	}
}

// A chunk that was read ahead is right, is read once, and is kept until all of it was had.
func TestAhead(t *testing.T) {
	const size = 3*chunk + 100
	s := NewStore(chunk, 1)
	o, d := opened(t, s, size)
	for _, c := range []int{3, 1} {
		o.Ahead(c)
	}
	before := d.reads.Load()
	for _, part := range [][2]int64{{chunk + 1, chunk - 1}, {3 * chunk, 100}, {chunk, 1}} {
		if got, err := read(o, part[0], part[1]); err != nil || !bytes.Equal(got, d.data[part[0]:part[0]+part[1]]) {
			t.Errorf("%d bytes from %d: wrong, or %v", part[1], part[0], err)
		}
	}
	if n := d.reads.Load() - before; n != 0 {
		t.Errorf("read again, %d times", n)
	}
	if len(o.kept) != 0 {
		t.Errorf("%d are kept for ever", len(o.kept))
	}
	o.Ahead(2)
	if got, err := read(o, 0, size); err != nil || !bytes.Equal(got, d.data) {
		t.Errorf("all of it: wrong, or %v", err)
	}
}

// Of a chunk that is wrong nothing is kept, and whoever wants it is told.
func TestBadChunkAhead(t *testing.T) {
	o, d := opened(t, NewStore(chunk, 1), 2*chunk)
	d.data[chunk+5] ^= 1
	o.Ahead(1)
	var corrupt *CorruptError
	if got, err := read(o, chunk, chunk); !errors.As(err, &corrupt) || len(got) != 0 {
		t.Errorf("%d bytes, %v", len(got), err)
	}
}

// What can't be handed over is there for the next try.
func TestAheadThatIsNotTaken(t *testing.T) {
	o, d := opened(t, NewStore(chunk, 1), chunk)
	o.Ahead(0)
	if done, err := o.Each(0, chunk, func([]byte) error { return io.ErrShortWrite }); done != 0 || !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%d bytes, %v", done, err)
	}
	if got, err := read(o, 0, chunk); err != nil || !bytes.Equal(got, d.data) {
		t.Error("wrong, or", err)
	}
}
