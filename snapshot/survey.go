package snapshot

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Stored is a workload's directory, looked at from outside.
type Stored struct {
	Dir  string
	Head Head
	// Err says why the head can't be read: ErrNoHead, ErrVersion, ErrCorrupt.
	Err   error
	Bytes uint64 // on the disk, all that is in it
	// Quarantined counts the snapshots that are set aside for a person.
	Quarantined int
}

// hashName is what DirFor calls a directory.
var hashName = regexp.MustCompile(`^[0-9a-f]{32}$`)

// Survey returns the directories of all workloads below dataDir, by path. It
// needs no ownership and changes nothing. No dataDir is an empty list.
func Survey(dataDir string) ([]Stored, error) {
	dirs, err := filepath.Glob(filepath.Join(escapeGlob(dataDir), "*", "*"))
	if err != nil {
		return nil, err
	}
	var all []Stored
	for _, dir := range dirs {
		if !hashName.MatchString(filepath.Base(dir)) {
			continue
		}
		s := Stored{Dir: dir}
		if s.Head, s.Err = readHead(dir); errors.Is(s.Err, ErrNoHead) && gone(dir) {
			continue
		}
		s.Quarantined = len(entriesOf(filepath.Join(dir, quarantineDir), ""))
		if s.Bytes, err = bytesIn(dir); err != nil {
			return nil, fmt.Errorf("survey snapshots: %w", err)
		}
		all = append(all, s)
	}
	return all, nil
}

func gone(dir string) bool {
	_, err := os.Lstat(dir)
	return errors.Is(err, fs.ErrNotExist)
}

// bytesIn adds up what files take; those that go meanwhile are nothing.
func bytesIn(dir string) (uint64, error) {
	var sum uint64
	err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = e.Info(); err == nil {
				sum += uint64(info.Size())
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	})
	return sum, err
}

// escapeGlob makes a path literal for Glob.
func escapeGlob(path string) string {
	return strings.NewReplacer(`*`, `\*`, `?`, `\?`, `[`, `\[`, `\`, `\\`).Replace(path)
}
