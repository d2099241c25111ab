package snapshot

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Stream is a committed snapshot that is sent to another node: manifest.json,
// and the files in the manifest's order. What it has open is read to its end
// also when the workload's directory has a newer snapshot meanwhile.
type Stream struct {
	document []byte
	files    image
}

// Stream opens all of it. Errors as of Complete, and os.ErrNotExist when it
// has been replaced.
func (s *Snapshot) Stream() (*Stream, error) {
	document, err := os.ReadFile(filepath.Join(s.dir, manifestFile))
	if err != nil {
		return nil, fmt.Errorf("send snapshot %d: %w", s.Sequence(), err)
	}
	files, err := s.open()
	if err != nil {
		return nil, fmt.Errorf("send snapshot %d: %w", s.Sequence(), err)
	}
	return &Stream{document: document, files: files}, nil
}

// Document is manifest.json.
func (t *Stream) Document() []byte { return t.document }

// Size of the files, in bytes.
func (t *Stream) Size() (n int64) {
	for _, f := range t.files {
		n += f.size
	}
	return n
}

// Close ends it.
func (t *Stream) Close() { t.files.close() }

// Send calls write with the files' bytes, ChunkSize or less at a time. A file
// that has become shorter is ErrTruncated.
func (t *Stream) Send(ctx context.Context, write func([]byte) error) error {
	buf := make([]byte, ChunkSize)
	for _, f := range t.files {
		for off := int64(0); off < f.size; {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			p := buf[:min(ChunkSize, f.size-off)]
			if n, err := f.ReadAt(p, off); n < len(p) {
				if err == io.EOF {
					return truncated(f.name, "ends at %d of %d bytes", off+int64(n), f.size)
				}
				return fmt.Errorf("read %s: %w", f.name, err)
			}
			if err := write(p); err != nil {
				return err
			}
			off += int64(len(p))
		}
	}
	return nil
}

// Receiving is a snapshot that comes from another node, in a directory of
// its own that is no workload's. It counts as nothing before Local.Receive.
type Receiving struct {
	dir      string
	document []byte
	manifest Manifest
}

// NewReceiving begins one by its manifest.json, in dir, which is made anew:
// ErrCorrupt, ErrVersion, ErrNoSpace.
func NewReceiving(dir string, document []byte) (*Receiving, error) {
	m, err := ParseManifest(document)
	if err != nil {
		return nil, fmt.Errorf("receive a snapshot: %w", err)
	}
	if err := os.RemoveAll(dir); err != nil {
		return nil, fmt.Errorf("receive a snapshot: %w", err)
	}
	if err := os.MkdirAll(filepath.Join(dir, imageDir), 0o700); err != nil {
		return nil, fmt.Errorf("receive a snapshot: %w", spaceError(err))
	}
	return &Receiving{dir: dir, document: document, manifest: m}, nil
}

// Manifest says what comes.
func (r *Receiving) Manifest() Manifest { return r.manifest }

// Size of what comes, in bytes.
func (r *Receiving) Size() (n int64) {
	for _, f := range r.manifest.Files {
		n += f.Size
	}
	return n
}

// Take reads the files from from, as Send writes them, compares each chunk
// with its checksum before it is written, and has all of it on the disk when
// it returns. tell is called after each chunk. On error nothing is left.
// Errors: ErrCorrupt, ErrNoSpace, ctx's, from's; io.ErrUnexpectedEOF when that
// ends early.
func (r *Receiving) Take(ctx context.Context, from io.Reader, tell func(n int64)) (*Snapshot, error) {
	if err := r.take(ctx, from, tell); err != nil {
		return nil, errors.Join(fmt.Errorf("receive snapshot %d: %w", r.manifest.Sequence, spaceError(err)), r.Discard())
	}
	return &Snapshot{dir: r.dir, manifest: r.manifest}, nil
}

// Discard deletes it.
func (r *Receiving) Discard() error { return os.RemoveAll(r.dir) }

func (r *Receiving) take(ctx context.Context, from io.Reader, tell func(n int64)) error {
	buf := make([]byte, ChunkSize)
	for _, f := range r.manifest.Files {
		if err := r.file(ctx, f, from, buf, tell); err != nil {
			return err
		}
	}
	if err := atomicfile.SyncDir(filepath.Join(r.dir, imageDir)); err != nil {
		return err
	}
	// Last: a directory without a manifest is none.
	return atomicfile.Write(filepath.Join(r.dir, manifestFile), r.document, 0o600, atomicfile.Options{Sync: true})
}

func (r *Receiving) file(ctx context.Context, f File, from io.Reader, buf []byte, tell func(n int64)) (err error) {
	out, err := os.OpenFile(filepath.Join(r.dir, imageDir, f.Name), os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for chunk, want := range f.CRC32C {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		off := int64(chunk) * ChunkSize
		p := buf[:min(ChunkSize, f.Size-off)]
		if _, err := io.ReadFull(from, p); err != nil {
			return noEOF(err)
		}
		if sum := crc32.Checksum(p, castagnoli); sum != want {
			return &CorruptError{File: f.Name, Chunk: chunk, Reason: fmt.Sprintf("checksum is %08x, want %08x", sum, want)}
		}
		if _, err := out.Write(p); err != nil {
			return err
		}
		// So that the end has less to wait for. Not every file system has it.
		_ = unix.SyncFileRange(int(out.Fd()), off, int64(len(p)), unix.SYNC_FILE_RANGE_WRITE)
		tell(int64(len(p)))
	}
	return out.Sync()
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// OpenReceived reads one that Take has finished: ErrCorrupt, ErrTruncated,
// os.ErrNotExist.
func OpenReceived(dir string) (*Snapshot, error) {
	m, err := readManifest(dir)
	if err != nil {
		return nil, err
	}
	s := &Snapshot{dir: dir, manifest: m}
	return s, s.Complete()
}

// Receive makes a snapshot that came from another node be the current one of
// this directory, in the state Asleep, with its number, epoch and lineage: it
// is what the workload is. Its files are hard links to those of s, which
// stays. What the directory has had before is dropped, as by a commit, or set
// aside in quarantine where it has a number as high. Doing it twice is no
// error. ErrEpoch when the directory knows of a higher (epoch, sequence).
func (l *Local) Receive(ctx context.Context, s *Snapshot) (*Snapshot, error) {
	now, err := l.receive(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("take in snapshot %d: %w", s.Sequence(), err)
	}
	return now, nil
}

func (l *Local) receive(ctx context.Context, s *Snapshot) (*Snapshot, error) {
	m := s.Manifest()
	before, err := l.headOrNew()
	if err != nil {
		return nil, err
	}
	current, err := l.Current()
	if err != nil && !errors.Is(err, ErrNone) && !errors.Is(err, ErrCorrupt) {
		return nil, err
	}
	if current != nil {
		switch have := current.Manifest(); {
		case have.Epoch == m.Epoch && have.Sequence == m.Sequence && have.Same(m):
			return current, nil
		case have.Epoch > m.Epoch || have.Epoch == m.Epoch && have.Sequence >= m.Sequence:
			return nil, fmt.Errorf("%w: it is %d of epoch %d, and %d of epoch %d is here", ErrEpoch, m.Sequence, m.Epoch, have.Sequence, have.Epoch)
		case have.Sequence >= m.Sequence:
			if err := l.Quarantine(current, fmt.Sprintf("another node has gone on with the workload, and sent its snapshot %d, of epoch %d", m.Sequence, m.Epoch)); err != nil {
				return nil, err
			}
		}
	}
	l.above = max(l.above, before.Sequence)
	in, err := l.Begin(ctx)
	if err != nil {
		return nil, err
	}
	in.sequence = m.Sequence
	if err := in.Link(ctx, s.Image()); err != nil {
		return nil, err
	}
	if err := l.throwAway(fmt.Sprint(m.Sequence)); err != nil { // named by no head
		return nil, errors.Join(err, in.Discard())
	}
	if err := copyFile(ctx, filepath.Join(s.dir, manifestFile), l.path(incomingDir, manifestFile)); err != nil {
		return nil, errors.Join(spaceError(err), in.Discard())
	}
	if err := errors.Join(syncFile(l.path(incomingDir, manifestFile)), atomicfile.SyncDir(l.path(incomingDir))); err != nil {
		return nil, errors.Join(spaceError(err), in.Discard())
	}
	if err := in.place(ctx); err != nil {
		return nil, errors.Join(err, in.Discard())
	}
	in.done = true
	h := before
	h.State, h.Sequence, h.Epoch, h.Time, h.Lineage, h.Restored = Asleep, m.Sequence, max(before.Epoch, m.Epoch), l.now().UTC(), m.Lineage, 0
	if err := l.step(ctx, "head"); err != nil {
		return nil, errors.Join(err, l.takeBack(m.Sequence))
	}
	if err := writeHead(l.dir, h); err != nil {
		return nil, errors.Join(err, l.takeBack(m.Sequence))
	}
	l.dropOthers(m.Sequence)
	return &Snapshot{dir: l.sequencePath(m.Sequence), manifest: m}, nil
}
