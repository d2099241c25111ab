package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// markName marks directories that this package made: a group of its own, or a
// parent that was missing.
const (
	markName   = "trusted.hibernate.made"
	markGroup  = "g"
	markParent = "p"
)

// absent gives those of dirs that don't exist, with their missing parents,
// parents first.
func absent(dirs []string) []string {
	seen := make(map[string]bool)
	var missing []string
	var visit func(dir string)
	visit = func(dir string) {
		if seen[dir] {
			return
		}
		seen[dir] = true
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			return
		}
		visit(filepath.Dir(dir))
		missing = append(missing, dir)
	}
	for _, dir := range dirs {
		visit(dir)
	}
	return missing
}

// mark is best effort: without marks the group is left behind, which does less
// harm than to remove another's.
func (g *Group) mark(made []string) {
	groups := g.dirs()
	for _, dir := range made {
		kind := markParent
		if slices.Contains(groups, dir) {
			kind = markGroup
		}
		_ = unix.Setxattr(dir, markName, []byte(kind), 0)
	}
}

func marked(dir, kind string) bool {
	var b [1]byte
	n, err := unix.Getxattr(dir, markName, b[:])
	return err == nil && string(b[:n]) == kind
}

// removeMade undoes a New that failed.
func (g *Group) removeMade(made []string) error {
	g.mark(made)
	return g.Delete()
}

// removeTimeout is how long Delete waits for processes that end: one that held much memory takes its time on a busy machine.
const removeTimeout = 5 * time.Second

// Delete removes the directories that New made, those of parents too when they
// are empty. Processes that end just now are waited for, for some seconds. It
// is idempotent.
func (g *Group) Delete() error {
	g.recent.end()
	var errs []error
	deadline := time.Now().Add(removeTimeout)
	for _, dir := range g.dirs() {
		if err := removeUp(dir, deadline); err != nil {
			errs = append(errs, fmt.Errorf("remove control group: %w", err))
		}
	}
	return errors.Join(errs...)
}

// removeUp removes a directory and then its parents, as far as they are ours.
func removeUp(dir string, deadline time.Time) error {
	if marked(dir, markGroup) {
		if err := removeWait(dir, deadline); err != nil {
			return err
		}
	}
	for parent := filepath.Dir(dir); marked(parent, markParent); parent = filepath.Dir(parent) {
		if os.Remove(parent) != nil {
			break // others live there
		}
	}
	return nil
}

func removeWait(dir string, deadline time.Time) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		err := unix.Rmdir(dir)
		if err == nil || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
			return fmt.Errorf("%s: %w", dir, err)
		}
		time.Sleep(wait)
	}
}
