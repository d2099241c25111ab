package filestore

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// listTries is how often a directory is read that changes meanwhile.
const listTries = 5

func versionOf(body []byte) store.Version {
	digest := sha256.Sum256(body)
	return version(digest[:])
}

// listing is an answer of List.
type listing struct {
	found []store.Info
	began time.Time
}

func (s *Store) List(ctx context.Context, prefix string) ([]store.Info, time.Time, error) {
	l, err := during(ctx, s, "list", prefix, func() (listing, error) {
		began, err := s.clock()
		if err != nil {
			return listing{}, err
		}
		w := &walk{ctx: ctx, prefix: prefix}
		fd, err := beneath(s.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return listing{}, err
		}
		if err := w.directory(fd, ""); err != nil {
			return listing{}, err
		}
		slices.SortFunc(w.found, func(a, b store.Info) int { return cmp.Compare(a.Name, b.Name) })
		return listing{w.found, began}, nil
	})
	return l.found, l.began, err
}

// clock is the file system's: a server's, where there is one.
func (s *Store) clock() (time.Time, error) {
	t, err := s.newTemp()
	if err != nil {
		return time.Time{}, err
	}
	defer t.remove()
	t.touch()
	info, err := t.file.Stat()
	if err != nil {
		return time.Time{}, err
	}
	return info.ModTime().Truncate(time.Second), nil
}

// walk collects objects.
type walk struct {
	ctx    context.Context
	prefix string
	found  []store.Info
}

// directory collects what is below a directory, whose names begin with at, and closes it.
func (w *walk) directory(fd int, at string) error {
	dir := os.NewFile(uintptr(fd), at)
	defer dir.Close()
	names, err := readAll(dir)
	if err != nil {
		return err
	}
	for _, base := range names {
		name := at + base
		// Both the prefix may go on from the name, and the name from the prefix.
		if store.CheckName(name) != nil || !(strings.HasPrefix(name, w.prefix) || strings.HasPrefix(w.prefix, name+"/")) {
			continue
		}
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.entry(fd, base, name); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// entry collects one. One that is gone meanwhile was deleted.
func (w *walk) entry(dir int, base, name string) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(dir, base, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return unlessGone(err)
	}
	if stat.Mode&unix.S_IFMT == unix.S_IFDIR {
		fd, err := beneath(dir, base, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return unlessGone(err)
		}
		return w.directory(fd, name+"/")
	}
	if err := regular(dir, base); err != nil {
		return unlessGone(err)
	}
	if strings.HasPrefix(name, w.prefix) {
		w.found = append(w.found, store.Info{Name: name, Size: stat.Size, Modified: time.Unix(stat.Mtim.Sec, 0)})
	}
	return nil
}

func unlessGone(err error) error {
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// readAll reads the names in a directory. Some file systems, btrfs for one, give a file that is replaced while the
// directory is read a new place in it, and it may be missed: a directory that has changed meanwhile is read again, and
// what was seen once counts.
func readAll(dir *os.File) ([]string, error) {
	seen := map[string]bool{}
	for range listTries {
		before, err := dir.Stat()
		if err != nil {
			return nil, err
		}
		if _, err := dir.Seek(0, 0); err != nil {
			return nil, err
		}
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return nil, unlessGone(err)
		}
		for _, name := range names {
			seen[name] = true
		}
		after, err := dir.Stat()
		if err != nil {
			return nil, err
		}
		if after.ModTime().Equal(before.ModTime()) {
			break
		}
	}
	var names []string
	for name := range seen {
		names = append(names, name)
	}
	return names, nil
}
