package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Origin says of which workload's snapshot another workload's first one is a
// copy.
type Origin struct {
	Namespace string    `json:"namespace"`
	ID        string    `json:"id,omitempty"`
	Identity  string    `json:"identity,omitempty"`
	Lineage   string    `json:"lineage,omitempty"`
	Sequence  uint64    `json:"sequence,omitempty"` // 0: it was never one of the workload's own
	Created   time.Time `json:"created"`            // UTC
}

// Image is the files of a snapshot, and their checksums.
type Image struct {
	Dir   string
	Files []File
}

// Image gives the files, for [Incoming.Link].
func (s *Snapshot) Image() Image { return Image{Dir: s.ImageDir(), Files: s.manifest.Files} }

// Image gives the files of one that is sealed: ErrNotSealed.
func (in *Incoming) Image() (Image, error) {
	if in.sealed == nil || in.done {
		return Image{}, ErrNotSealed
	}
	return Image{Dir: in.ImageDir(), Files: in.sealed.Files}, nil
}

// Link fills the incoming snapshot with the files of another workload's and
// seals it. On one file system they are hard links: nothing of a snapshot's
// files changes once it is sealed, so both may have them, and no byte is read
// or written. Elsewhere they are copies. The checksums are taken over, and
// compared when it is restored, as always. Errors: ErrCorrupt when a file isn't
// as long as from says, os.ErrNotExist when from has been replaced meanwhile,
// ErrNoSpace; the incoming one is then discarded.
func (in *Incoming) Link(ctx context.Context, from Image) error {
	if err := in.link(ctx, from); err != nil {
		return errors.Join(fmt.Errorf("copy snapshot: %w", spaceError(err)), in.Discard())
	}
	return nil
}

func (in *Incoming) link(ctx context.Context, from Image) error {
	if in.done || in.sealed != nil {
		return ErrNotSealed
	}
	if err := in.l.step(ctx, "seal"); err != nil {
		return err
	}
	s := Sealed{Files: from.Files}
	for _, f := range from.Files {
		if err := in.linkOne(ctx, from.Dir, f); err != nil {
			return err
		}
		s.Size += uint64(f.Size)
	}
	if err := atomicfile.SyncDir(in.ImageDir()); err != nil {
		return err
	}
	in.sealed = &s
	return nil
}

func (in *Incoming) linkOne(ctx context.Context, dir string, f File) error {
	to := filepath.Join(in.ImageDir(), f.Name)
	err := os.Link(filepath.Join(dir, f.Name), to)
	if err == nil {
		return asLong(to, f)
	}
	if !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EMLINK) && !errors.Is(err, unix.EPERM) {
		return err
	}
	if err := copyFile(ctx, filepath.Join(dir, f.Name), to); err != nil {
		return err
	}
	if err := asLong(to, f); err != nil {
		return err
	}
	return syncFile(to)
}

func asLong(path string, f File) error {
	st, err := os.Lstat(path)
	switch {
	case err != nil:
		return err
	case !st.Mode().IsRegular():
		return corrupt(f.Name, "not a regular file")
	case st.Size() != f.Size:
		return truncated(f.Name, "%d bytes, want %d", st.Size(), f.Size)
	}
	return nil
}

func syncFile(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// ErrTaken: the directory of the workload that is to be made is another's already.
var ErrTaken = errors.New("there is a workload of that name already")

// Mint makes the workload that dir is for: asleep, with a copy of from as its
// first snapshot, and with m, of which Commit sets its part. WithOwner names it.
// Errors: ErrTaken, ErrBusy, and those of Link; nothing is left then.
func Mint(ctx context.Context, dir string, from Image, m Manifest, opts ...Option) (err error) {
	l, err := OpenLocal(dir, opts...)
	if err != nil {
		return fmt.Errorf("make a workload: %w", err)
	}
	defer func() { err = errors.Join(err, l.RemoveUnused(), l.Close()) }()
	if err := l.Mint(ctx, from, m); err != nil {
		return fmt.Errorf("make a workload: %w", err)
	}
	return nil
}

// Mint is [Mint] in a directory that is open, and has no head yet: ErrTaken.
func (l *Local) Mint(ctx context.Context, from Image, m Manifest) error {
	if _, err := l.Head(); !errors.Is(err, ErrNoHead) {
		return fmt.Errorf("%s: %w", l.dir, ErrTaken)
	}
	in, err := l.Begin(ctx)
	if err != nil {
		return err
	}
	if err := in.Link(ctx, from); err != nil {
		return err
	}
	_, err = in.Commit(ctx, m)
	return err
}
