package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Sealed is what Seal found: the content of Manifest.Files, and figures.
type Sealed struct {
	Files  []File
	Size   uint64 // bytes of all files
	Memory uint64 // bytes of pages, as pages_meta.img says
	// How long each part took; they overlap.
	Check, Hash, Sync time.Duration

	layout layout
}

// Seal makes sure that the checkpoint is whole and on the disk: the sizes of
// runsc's files agree with each other, every file and the directory are
// fsynced, and the checksum of every chunk is known. Checksums are computed
// while the disk writes. runsc must have finished; nothing may write to the
// directory from here on.
//
// On error the incoming snapshot is discarded: ErrCorrupt, ErrTruncated,
// ErrNoSpace, ctx's error.
func (in *Incoming) Seal(ctx context.Context) (Sealed, error) {
	s, err := in.seal(ctx)
	if err != nil {
		return Sealed{}, errors.Join(fmt.Errorf("seal snapshot %d: %w", in.sequence, spaceError(err)), in.Discard())
	}
	in.sealed = &s
	return s, nil
}

func (in *Incoming) seal(ctx context.Context) (Sealed, error) {
	if in.done {
		return Sealed{}, ErrNotSealed
	}
	if err := in.l.step(ctx, "seal"); err != nil {
		return Sealed{}, err
	}
	files, err := openImage(in.ImageDir())
	if err != nil {
		return Sealed{}, err
	}
	defer files.close()
	var s Sealed
	g, ctx := errgroup.WithContext(ctx)
	g.Go(timed(&s.Sync, func() error { return files.sync(ctx) }))
	g.Go(timed(&s.Check, func() (err error) { s.Memory, s.layout, err = checkImage(in.ImageDir()); return err }))
	g.Go(timed(&s.Hash, func() (err error) { s.Files, err = files.checksums(ctx); return err }))
	if err := g.Wait(); err != nil {
		return Sealed{}, err
	}
	for _, f := range s.Files {
		s.Size += uint64(f.Size)
	}
	return s, atomicfile.SyncDir(in.ImageDir())
}

func timed(d *time.Duration, fn func() error) func() error {
	return func() error {
		start := time.Now()
		defer func() { *d = time.Since(start) }()
		return fn()
	}
}

// image is the open files of an image directory, ordered by name.
type image []imageFile

type imageFile struct {
	*os.File
	name string
	size int64
}

func openImage(dir string) (image, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var out image
	for _, e := range entries { // ReadDir sorts.
		if !e.Type().IsRegular() {
			out.close()
			return nil, corrupt(e.Name(), "not a regular file")
		}
		f, err := openFile(dir, e.Name())
		if err != nil {
			out.close()
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

func openFile(dir, name string) (imageFile, error) {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return imageFile{}, err
	}
	st, err := f.Stat()
	if err != nil {
		return imageFile{}, errors.Join(err, f.Close())
	}
	if !st.Mode().IsRegular() {
		return imageFile{}, errors.Join(corrupt(name, "not a regular file"), f.Close())
	}
	return imageFile{File: f, name: name, size: st.Size()}, nil
}

func (im image) close() {
	for _, f := range im {
		_ = f.Close() // Only read from.
	}
}

// sync closes the files to other users and waits for the disk. Writing of all
// begins before the first is waited for.
func (im image) sync(ctx context.Context) error {
	for _, f := range im {
		if err := f.Chmod(0o600); err != nil {
			return err
		}
		// Not every file system has it, and fsync follows anyway.
		_ = unix.SyncFileRange(int(f.Fd()), 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	}
	for _, f := range im {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return fmt.Errorf("fsync: %w", err)
		}
	}
	return nil
}

func (im image) checksums(ctx context.Context) ([]File, error) {
	files := make([]File, len(im))
	for i, f := range im {
		files[i] = File{Name: f.name, Size: f.size}
		files[i].CRC32C = make([]uint32, files[i].chunks())
	}
	err := im.eachChunk(ctx, min(maxWorkers, runtime.NumCPU()), func(file, chunk int, sum uint32) error {
		files[file].CRC32C[chunk] = sum
		return nil
	})
	return files, err
}
