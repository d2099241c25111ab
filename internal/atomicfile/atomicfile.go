// Package atomicfile replaces small files so that a reader, or a reboot,
// finds either the old content or the new content and nothing between.
//
// The new content is written to a temporary file in the same directory, whose
// name starts with [TempPrefix], and renamed over the old one:
//
//	err := atomicfile.Write("/run/x/state.json", data, 0o600, atomicfile.Options{Sync: true})
//
// A crash may leave a temporary file behind; [RemoveTemps] clears them.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// TempPrefix starts the name of every temporary file this package makes.
const TempPrefix = ".tmp-"

// Options says how durable a write has to be.
type Options struct {
	// Sync makes the write survive a power failure: the file is fsynced
	// before the rename and its directory after it. Without Sync the write
	// survives the death of the process only.
	Sync bool
}

// Write replaces path with data. The file gets exactly mode, whatever the
// umask says. When Write fails the old file is as it was, with one exception:
// if only the last fsync of the directory fails, the new content is visible
// but may not survive a power failure.
func Write(path string, data []byte, mode os.FileMode, opts Options) error {
	temp, err := prepare(path, data, mode, opts)
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if err := os.Rename(temp, path); err != nil {
		return errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(temp))
	}
	if !opts.Sync {
		return nil
	}
	if err := SyncDir(filepath.Dir(path)); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// prepare writes the temporary file and returns its name, or leaves none.
func prepare(path string, data []byte, mode os.FileMode, opts Options) (string, error) {
	f, err := os.CreateTemp(filepath.Dir(path), TempPrefix+filepath.Base(path)+"-")
	if err != nil {
		return "", err
	}
	err = fill(f, data, mode, opts.Sync)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return "", errors.Join(err, os.Remove(f.Name()))
	}
	return f.Name(), nil
}

func fill(f *os.File, data []byte, mode os.FileMode, sync bool) error {
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if sync {
		return f.Sync()
	}
	return nil
}

// SyncDir makes the names in dir (creations, renames, removals) survive a
// power failure.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	err = d.Sync()
	if cerr := d.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// RemoveTemps deletes what interrupted writes left in dir. The caller makes
// sure that nobody writes there at the same time. A missing dir is no error.
func RemoveTemps(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove temporary files: %w", err)
	}
	var errs []error
	for _, e := range entries {
		if e.Type().IsRegular() && strings.HasPrefix(e.Name(), TempPrefix) {
			errs = append(errs, os.Remove(filepath.Join(dir, e.Name())))
		}
	}
	return errors.Join(errs...)
}
