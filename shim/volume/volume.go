// Package volume looks at files that a sandbox maps and its snapshot hasn't got: those of *outside* mounts, by which a directory or a file of the
// host's is seen inside. A *look* is a fingerprint of such a source that costs no reading of contents, by which a later one can tell
// whether the files are still those that the memory knows.
//
//	before, err := volume.Look(ctx, "/srv/data", volume.Most)
//	now, err := volume.Look(ctx, "/srv/data", before.Entries)
//	now.Same(before)
//
// What it can't see: changes of a file that leave its size, its times and its inode, as by a program that writes to the block device below; whatever
// is beyond the first [Most] entries; and changes that another machine made and this one's cache of a network's file system doesn't know of yet.
package volume

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Most bounds how many entries of a source a look takes in.
const Most = 20000

// Print is what a look has seen.
type Print = snapshot.Print

// Look takes in a source, a directory or a file: path, kind, size, times and inode of at most so many entries, in the order of their names; of directories the
// names alone. Symbolic links are not followed. Mounts below are taken in. When ctx ends before, the print has what came until then, and More. A source
// that doesn't answer, as of a server that is gone, is ErrSilent; the kernel's call can't be cut short, and goes on.
func Look(ctx context.Context, source string, most int) (Print, error) {
	type result struct {
		Print
		error
	}
	done := make(chan result, 1)
	go func() {
		p, err := walk(ctx, source, most)
		done <- result{p, err}
	}()
	select {
	case r := <-done:
		return r.Print, r.error
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.Print, r.error
	case <-time.After(endsWithin):
		return Print{}, &os.PathError{Op: "look at", Path: source, Err: ErrSilent}
	}
}

// ErrSilent is about a source whose file system doesn't answer.
var ErrSilent = errors.New("its file system does not answer")

// endsWithin is how long a walk may take to notice the end of its time, where the file system answers.
const endsWithin = 500 * time.Millisecond

func walk(ctx context.Context, source string, most int) (Print, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(source, &s); err != nil {
		return Print{}, &os.PathError{Op: "statfs", Path: source, Err: err}
	}
	info, err := os.Stat(source)
	if err != nil {
		return Print{}, err
	}
	l := look{ctx: ctx, most: most, sum: sha256.New()}
	l.FileSystem = fmt.Sprintf("%x/%08x%08x", uint64(s.Type), uint32(s.Fsid.Val[0]), uint32(s.Fsid.Val[1]))
	if info.IsDir() {
		err = l.directory(source, "")
	} else {
		l.note(".", info)
	}
	if err != nil && !errors.Is(err, errEnough) {
		return Print{}, err
	}
	l.Digest = hex.EncodeToString(l.sum.Sum(nil))
	return l.Print, nil
}

// errEnough ends a walk.
var errEnough = errors.New("enough")

type look struct {
	Print
	ctx  context.Context
	most int
	sum  hash.Hash
}

// directory takes in what is below a directory.
func (l *look) directory(path, name string) error {
	list, err := os.ReadDir(path)
	if errors.Is(err, fs.ErrNotExist) { // somebody removes it
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range list {
		if l.Entries >= l.most || l.ctx.Err() != nil {
			l.More = true
			return errEnough
		}
		info, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		below := filepath.Join(name, e.Name())
		l.note(below, info)
		if info.IsDir() {
			if err := l.directory(filepath.Join(path, e.Name()), below); err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *look) note(name string, info fs.FileInfo) {
	l.Entries++
	fmt.Fprintf(l.sum, "%q %o", name, uint32(info.Mode().Type()))
	if info.IsDir() {
		fmt.Fprintln(l.sum)
		return
	}
	changed := info.ModTime()
	var inode uint64
	var inodeChanged time.Time
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		inode, inodeChanged = s.Ino, time.Unix(s.Ctim.Unix())
	}
	fmt.Fprintf(l.sum, " %d %d %d %d\n", info.Size(), changed.UnixNano(), inodeChanged.UnixNano(), inode)
	for _, t := range []time.Time{changed, inodeChanged} {
		if t.After(l.Newest) {
			l.Newest = t.UTC()
		}
	}
}

// Sync has the file system of a source write to the disk what it has in memory. The kernel's call can't be cut short: when ctx ends before, the
// error is its cause, and the call goes on; done is closed at its end.
func Sync(ctx context.Context, source string) (done <-chan struct{}, err error) {
	ended, result := make(chan struct{}), make(chan error, 1)
	go func() {
		defer close(ended)
		result <- syncfs(source)
	}()
	select {
	case err := <-result:
		return ended, err
	case <-ctx.Done():
		return ended, context.Cause(ctx)
	}
}

func syncfs(source string) error {
	f, err := os.Open(source)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Syncfs(int(f.Fd())); err != nil {
		return &os.PathError{Op: "syncfs", Path: source, Err: err}
	}
	return nil
}
