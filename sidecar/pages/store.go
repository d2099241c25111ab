package pages

import (
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"runtime/debug"
	"sync"
	"time"
)

// File is what is known of a file beforehand.
type File struct {
	Name   string
	Size   int64    // bytes
	CRC32C []uint32 // of each chunk; the last may be shorter
}

// CorruptError says that the bytes of a chunk are not those that were saved.
type CorruptError struct {
	File   string
	Chunk  int
	Reason string
}

func (e *CorruptError) Error() string {
	return fmt.Sprintf("%s: chunk %d: %s", e.File, e.Chunk, e.Reason)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Store reads files in checked chunks, through a fixed number of buffers that all files share. Methods may be called from
// many goroutines.
type Store struct {
	chunkSize int64

	mu    sync.Mutex // guards the fields below, and the buffers' but for data
	freed sync.Cond  // a buffer may be taken
	all   []*buffer
	clock uint64
}

// buffer holds a chunk. ready is closed when data and err are set; from then on both stay until users is 0.
type buffer struct {
	open  *Open
	chunk int
	users int
	used  uint64 // when last: the least is taken first
	ready chan struct{}
	data  []byte
	err   error
}

// NewStore makes a store whose buffers take buffers × chunkSize bytes, once used. It needs one for each goroutine that
// reads at a time; with more, a neighbour's chunk needn't be read twice.
func NewStore(chunkSize int64, buffers int) *Store {
	s := &Store{chunkSize: chunkSize, all: make([]*buffer, buffers)}
	s.freed.L = &s.mu
	for i := range s.all {
		s.all[i] = &buffer{chunk: -1}
	}
	return s
}

// Open is a file that is read through a store.
type Open struct {
	store *Store
	file  File
	blob  Blob

	mu   sync.Mutex // guards kept
	kept map[int]*kept
}

// kept is a checked chunk that was read ahead.
type kept struct {
	data []byte
	left int64 // bytes that nobody has had yet
}

// Open gives the file of a blob. Close closes the blob.
func (s *Store) Open(file File, blob Blob) (*Open, error) {
	want := (file.Size + s.chunkSize - 1) / s.chunkSize
	if file.Size < 0 || int64(len(file.CRC32C)) != want {
		return nil, fmt.Errorf("%s: %d checksums for %d bytes, want %d", file.Name, len(file.CRC32C), file.Size, want)
	}
	return &Open{store: s, file: file, blob: blob}, nil
}

// Close may be called once nobody reads any more.
func (o *Open) Close() error {
	o.store.forget(o)
	o.mu.Lock()
	o.kept = nil
	o.mu.Unlock()
	return o.blob.Close()
}

func (s *Store) forget(o *Open) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.all {
		if b.open == o {
			b.open, b.chunk = nil, -1
		}
	}
}

// Each calls put with the checked bytes of [off, off+n), in order and piece by piece; a piece is valid during the call
// only. Past the end of the file it returns io.EOF after what is there. done is how much put has taken. Errors:
// *CorruptError, put's, or that of the place.
func (o *Open) Each(off, n int64, put func(piece []byte) error) (done int64, err error) {
	end := min(off+n, o.file.Size)
	for off < end {
		if n, err := o.eachKept(off, end, put); n > 0 || err != nil {
			off, done = off+n, done+n
			if err != nil {
				return done, err
			}
			continue
		}
		b := o.store.get(o, int(off/o.store.chunkSize))
		if b.err == nil {
			from := off % o.store.chunkSize
			piece := b.data[from:min(int64(len(b.data)), from+end-off)]
			if err = put(piece); err == nil {
				off, done = off+int64(len(piece)), done+int64(len(piece))
			}
		} else {
			err = b.err
		}
		o.store.release(b)
		if err != nil {
			return done, err
		}
	}
	if done < n {
		return done, io.EOF
	}
	return done, nil
}

// freeAfter is when the memory of what was read ahead is given back: the sandbox needs the processors now.
const freeAfter = 100 * time.Millisecond

// eachKept is Each for the rest of the chunk at off, if it was read ahead. Once all of a chunk was had, it is kept no more.
func (o *Open) eachKept(off, end int64, put func(piece []byte) error) (done int64, err error) {
	chunk := int(off / o.store.chunkSize)
	o.mu.Lock()
	k := o.kept[chunk]
	o.mu.Unlock()
	if k == nil {
		return 0, nil
	}
	from := off % o.store.chunkSize
	piece := k.data[from:min(int64(len(k.data)), from+end-off)]
	if err := put(piece); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if k.left -= int64(len(piece)); k.left <= 0 {
		if delete(o.kept, chunk); len(o.kept) == 0 {
			time.AfterFunc(freeAfter, debug.FreeOSMemory)
		}
	}
	return int64(len(piece)), nil
}

// Ahead reads and checks a chunk, and keeps it beside the buffers until all of it was had, or Close. The caller bounds how many. One that
// is wrong or can't be read is not kept: whoever wants it is told.
func (o *Open) Ahead(chunk int) {
	b := &buffer{}
	if o.fill(b, chunk) != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.kept == nil {
		o.kept = map[int]*kept{}
	}
	o.kept[chunk] = &kept{b.data, int64(len(b.data))}
}

// get returns the buffer with a chunk, read and checked, or with the error of that. The caller releases it.
func (s *Store) get(o *Open, chunk int) *buffer {
	b, mine := s.claim(o, chunk)
	if mine {
		b.err = o.fill(b, chunk)
		close(b.ready)
	}
	<-b.ready
	return b
}

// claim finds the buffer of a chunk, or takes one for it, which the caller is to fill then.
func (s *Store) claim(o *Open, chunk int) (b *buffer, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var free *buffer
		for _, c := range s.all {
			if c.open == o && c.chunk == chunk {
				c.users++
				return c, false
			}
			if c.users == 0 && (free == nil || c.used < free.used) {
				free = c
			}
		}
		if free != nil {
			free.open, free.chunk, free.users = o, chunk, 1
			free.ready, free.err = make(chan struct{}), nil
			return free, true
		}
		s.freed.Wait()
	}
}

// release lets a buffer be taken for another chunk. One that failed is not kept: the next read tries again.
func (s *Store) release(b *buffer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	b.users--
	s.clock++
	b.used = s.clock
	if b.err != nil {
		b.open, b.chunk = nil, -1
	}
	if b.users == 0 {
		s.freed.Signal()
	}
}

// step fits a core's own cache with room to spare, so that the checksum runs over what the copy just brought there.
const step = 256 << 10

// alternative is a blob that another place stands behind.
type alternative interface {
	Other() (Blob, error)
	Mended(chunk int, why error)
}

// fill reads a chunk and compares its checksum. One that is wrong, or can't be read, is read from another place, where there is one.
func (o *Open) fill(b *buffer, chunk int) error {
	if b.data == nil {
		b.data = make([]byte, o.store.chunkSize)
	}
	b.data = b.data[:min(o.store.chunkSize, o.file.Size-int64(chunk)*o.store.chunkSize)]
	err := o.read(o.blob, b.data, chunk)
	a, ok := o.blob.(alternative)
	if err == nil || !ok {
		return err
	}
	other, e := a.Other()
	if e == nil {
		e = o.read(other, b.data, chunk)
	}
	if e != nil {
		return fmt.Errorf("%w; %w", err, elsewhereError{e})
	}
	a.Mended(chunk, err)
	return nil
}

// elsewhereError is why another place could not help: of what kind the failure is, the first place says.
type elsewhereError struct{ err error }

func (e elsewhereError) Error() string { return e.err.Error() }

// read reads a chunk from a place and compares its checksum.
func (o *Open) read(from Blob, to []byte, chunk int) error {
	off, want, piece := int64(chunk)*o.store.chunkSize, int64(len(to)), int64(step)
	if f, ok := from.(interface{ ReadSize() int64 }); ok {
		piece = f.ReadSize()
	}
	var sum uint32
	for at := int64(0); at < want; {
		n, err := from.ReadAt(to[at:min(at+piece, want)], off+at)
		sum = crc32.Update(sum, castagnoli, to[at:at+int64(n)])
		at += int64(n)
		switch {
		case errors.Is(err, io.EOF) && at < want:
			return &CorruptError{File: o.file.Name, Chunk: chunk, Reason: fmt.Sprintf("the file ends at %d of %d bytes", off+at, o.file.Size)}
		case err != nil && !errors.Is(err, io.EOF):
			return fmt.Errorf("read chunk %d of %s: %w", chunk, o.file.Name, err)
		}
	}
	if sum != o.file.CRC32C[chunk] {
		return &CorruptError{File: o.file.Name, Chunk: chunk, Reason: fmt.Sprintf("checksum is %08x, want %08x", sum, o.file.CRC32C[chunk])}
	}
	return nil
}
