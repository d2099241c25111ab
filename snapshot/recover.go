package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// recover puts right what an interrupted owner left. Only what head.json does
// not name is thrown away, and only when head.json could be read.
func (l *Local) recover() error {
	head, err := readHead(l.dir)
	if err != nil && !errors.Is(err, ErrNoHead) {
		return nil // Head says it to whoever asks.
	}
	if err := atomicfile.RemoveTemps(l.dir); err != nil {
		return err
	}
	for _, name := range []string{incomingDir, fetchedDir} {
		if err := l.throwAway(name); err != nil {
			return err
		}
	}
	present, err := l.sequences()
	if err != nil {
		return err
	}
	_, missing := l.load(head.Sequence)
	for _, seq := range present {
		if seq == head.Sequence || seq < head.Sequence && missing != nil {
			continue // An older one is the only hope when the current is lost.
		}
		if err := l.throwAway(strconv.FormatUint(seq, 10)); err != nil {
			return err
		}
	}
	return nil
}

// sequences lists the numbered directories, highest first.
func (l *Local) sequences() ([]uint64, error) { return sequencesIn(l.dir) }

func sequencesIn(dir string) ([]uint64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list snapshots: %w", err)
	}
	var out []uint64
	for _, e := range entries {
		if seq, ok := parseSequence(e.Name()); ok && e.IsDir() {
			out = append(out, seq)
		}
	}
	sortDescending(out)
	return out, nil
}

// parseSequence accepts only what FormatUint writes, and not 0.
func parseSequence(name string) (uint64, bool) {
	seq, err := strconv.ParseUint(name, 10, 64)
	return seq, err == nil && seq > 0 && strconv.FormatUint(seq, 10) == name
}

// throwAway renames name out of the way, which is quick; the deletion of
// what may be gigabytes follows in emptyTrash. A name that is not there is
// fine.
func (l *Local) throwAway(name string) error {
	if _, err := os.Lstat(l.path(name)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.Mkdir(l.path(trashDir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return l.removeNow(name, err)
	}
	target := l.path(trashDir, fmt.Sprintf("%s-%d", name, l.now().UnixNano()))
	if err := os.Rename(l.path(name), target); err != nil {
		return l.removeNow(name, err)
	}
	return nil
}

// removeNow deletes at once when even a rename does not work, as on a file
// system without a free block for the trash directory.
func (l *Local) removeNow(name string, cause error) error {
	if err := os.RemoveAll(l.path(name)); err != nil {
		return fmt.Errorf("throw away %s: %w", name, errors.Join(cause, err))
	}
	return nil
}

// emptyTrash deletes in the background; Close waits for it. A failure is left
// for the next open: the names are out of the way.
func (l *Local) emptyTrash() {
	trash := entriesOf(l.path(trashDir), "")
	trash = append(trash, entriesOf(filepath.Dir(l.dir), removedPrefix)...)
	if len(trash) == 0 {
		return
	}
	l.cleaning.Go(func() {
		for _, t := range trash {
			_ = os.RemoveAll(t)
		}
	})
}

func entriesOf(dir, prefix string) []string {
	entries, _ := os.ReadDir(dir)
	var out []string
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), prefix) {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out
}
