package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Uncache has the kernel give back the memory in which it keeps runsc's files.
// Those of a sleeper are worth keeping, for its wake. Once it is awake they
// would count as memory that it works with, as much again as its own, until the
// next hibernation. Files that are gone are no error.
func (s *Snapshot) Uncache() error {
	var errs []error
	for _, f := range s.manifest.Files {
		err := uncache(filepath.Join(s.ImageDir(), f.Name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("snapshot %d: %w", s.Sequence(), err))
		}
	}
	return errors.Join(errs...)
}

func uncache(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		return &os.PathError{Op: "fadvise", Path: path, Err: err}
	}
	return nil
}
