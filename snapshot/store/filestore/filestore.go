// Package filestore keeps objects as files below a directory, which may be one of a network file system that several nodes
// have mounted.
//
// An object's name is its path. A file is written beside, fsynced, and linked or renamed to its place, so a reader sees it whole or not;
// its directories are fsynced too, up to the root. It is never changed in place. Where nothing must be, link decides; a
// write over a version, without a condition, or a deletion is done under a lock (flock) that is chosen by the name. The locks and
// unfinished files are in .store below the root. Directories and files are the owner's alone, and no symbolic
// link is followed below the root.
//
// The version is the SHA-256 of the content: inode and time aren't enough, since an inode that was freed is used again
// within the same tick of the clock. A list therefore tells no versions.
package filestore

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// atOnce is how many operations may be in the kernel: those on a file system that hangs stay there after their callers have left.
const atOnce = 64

// Store is a directory.
type Store struct {
	path  string
	root  *os.File
	slots chan struct{}

	mu     sync.Mutex
	inside int // operations that may use root
	closed bool
}

var _ store.Store = (*Store)(nil)

// Open uses a directory that is there: one that is missing may be a disk that isn't mounted. It must be writable for its owner
// alone. What earlier processes have left unfinished is removed.
func Open(dir string) (*Store, error) {
	if !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("%w: %s is no absolute path: write file:///…", store.ErrRefused, dir)
	}
	path, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return nil, classify("open the store", dir, err)
	}
	root, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_CLOEXEC|os.O_RDONLY, 0)
	if err != nil {
		return nil, classify("open the store", path, err)
	}
	s := &Store{path: path, root: root, slots: make(chan struct{}, atOnce)}
	if err := s.prepare(); err != nil {
		root.Close()
		return nil, err
	}
	return s, nil
}

// prepare makes the store's own directories.
func (s *Store) prepare() error {
	info, err := s.root.Stat()
	if err != nil {
		return classify("open the store", s.path, err)
	}
	if info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%w: others than the owner may write to %s (mode %04o), and could swap what is restored: chmod go-w it", store.ErrRefused, s.path, info.Mode().Perm())
	}
	for _, own := range []string{ownDir, tempDir, lockDir} {
		if err := unix.Mkdirat(s.fd(), own, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
			return classify("make", filepath.Join(s.path, own), err)
		}
	}
	return s.removeLeftovers()
}

func (s *Store) fd() int { return int(s.root.Fd()) }

// Close lets go of the directory once nothing is under way any more; it doesn't wait for that.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	if s.inside == 0 {
		return s.root.Close()
	}
	return nil
}

func (s *Store) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%s: %w", s.path, os.ErrClosed)
	}
	s.inside++
	return nil
}

func (s *Store) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.inside--; s.closed && s.inside == 0 {
		s.root.Close()
	}
}

// during calls do, and leaves it alone when the context ends first: the kernel may hang on a network file system.
func during[T any](ctx context.Context, s *Store, what, name string, do func() (T, error)) (T, error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, fmt.Errorf("%s %s: %w", what, name, err)
	}
	select {
	case s.slots <- struct{}{}:
	case <-ctx.Done():
		return none, fmt.Errorf("%s %s: %d operations hang in %s: %w", what, name, atOnce, s.path, ctx.Err())
	}
	if err := s.enter(); err != nil {
		<-s.slots
		return none, err
	}
	type answer struct {
		value T
		err   error
	}
	answers := make(chan answer, 1)
	go func() {
		value, err := do()
		s.leave()
		<-s.slots
		answers <- answer{value, err}
	}()
	select {
	case a := <-answers:
		if a.err != nil {
			return a.value, classify(what, name, a.err)
		}
		return a.value, nil
	case <-ctx.Done():
		return none, fmt.Errorf("%s %s: %w", what, name, ctx.Err())
	}
}

// found is an object that was read.
type found struct {
	body []byte
	info store.Info
}

func (s *Store) Get(ctx context.Context, name string, limit int64) ([]byte, store.Info, error) {
	if err := store.CheckName(name); err != nil {
		return nil, store.Info{}, err
	}
	f, err := during(ctx, s, "get", name, func() (found, error) {
		return s.read(name, limit)
	})
	return f.body, f.info, err
}

func (s *Store) Stat(ctx context.Context, name string) (store.Info, error) {
	if err := store.CheckName(name); err != nil {
		return store.Info{}, err
	}
	return during(ctx, s, "stat", name, func() (store.Info, error) {
		f, err := s.open(name)
		if err != nil {
			return store.Info{}, err
		}
		defer f.Close()
		info, err := describe(f, name)
		if err != nil {
			return store.Info{}, err
		}
		digest := sha256.New()
		if n, err := io.Copy(digest, f); err != nil || n != info.Size {
			return store.Info{}, cutShort(n, info.Size, err)
		}
		info.Version = version(digest.Sum(nil))
		return info, nil
	})
}

func (s *Store) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if err := store.CheckRange(name, offset, length); err != nil {
		return nil, err
	}
	return during(ctx, s, "range of", name, func() ([]byte, error) {
		f, err := s.open(name)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		if info, err := describe(f, name); err != nil {
			return nil, err
		} else if offset+length > info.Size {
			return nil, fmt.Errorf("%d bytes from %d of %d: %w", length, offset, info.Size, io.ErrUnexpectedEOF)
		}
		body := make([]byte, length)
		if n, err := f.ReadAt(body, offset); n < len(body) {
			return nil, cutShort(int64(n), length, err)
		}
		return body, nil
	})
}

// open opens an object for reading.
func (s *Store) open(name string) (*os.File, error) {
	fd, err := beneath(s.fd(), name, unix.O_RDONLY|unix.O_NONBLOCK)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) {
		return nil, store.ErrNotFound
	}
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), filepath.Join(s.path, name)), nil
}

// read reads an object whole.
func (s *Store) read(name string, limit int64) (found, error) {
	f, err := s.open(name)
	if err != nil {
		return found{}, err
	}
	defer f.Close()
	info, err := describe(f, name)
	if err != nil {
		return found{}, err
	}
	if info.Size > limit {
		return found{}, fmt.Errorf("%w: %d bytes, and at most %d are taken", store.ErrTooLarge, info.Size, limit)
	}
	body := make([]byte, info.Size)
	if n, err := io.ReadFull(f, body); err != nil {
		return found{}, cutShort(int64(n), info.Size, err)
	}
	digest := sha256.Sum256(body)
	info.Version = version(digest[:])
	return found{body, info}, nil
}

// describe tells all but the version.
func describe(f *os.File, name string) (store.Info, error) {
	stat, err := f.Stat()
	switch {
	case err != nil:
		return store.Info{}, err
	case stat.IsDir():
		return store.Info{}, store.ErrNotFound
	case !stat.Mode().IsRegular():
		return store.Info{}, fmt.Errorf("%w: %s is no regular file: remove it", store.ErrRefused, f.Name())
	}
	return store.Info{Name: name, Size: stat.Size(), Modified: stat.ModTime().Truncate(time.Second)}, nil
}

func version(digest []byte) store.Version { return store.Version(hex.EncodeToString(digest[:16])) }

func cutShort(got, want int64, err error) error {
	if err == nil {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("%w: read %d bytes of %d: %w", store.ErrUnavailable, got, want, err)
}

// beneath opens a path below a directory and follows no symbolic link on the way.
func beneath(dir int, path string, flags uint64) (int, error) {
	for {
		fd, err := unix.Openat2(dir, path, &unix.OpenHow{
			Flags:   flags | unix.O_CLOEXEC, // with O_NOFOLLOW a link would be told as "not a directory"
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		if errors.Is(err, unix.EINTR) || errors.Is(err, unix.EAGAIN) {
			continue
		}
		return fd, err
	}
}

// classify makes an error one of the contract's.
func classify(what, name string, err error) error {
	for _, known := range []error{store.ErrNotFound, store.ErrExists, store.ErrChanged, store.ErrTooLarge, store.ErrRefused, store.ErrUnavailable,
		io.ErrUnexpectedEOF, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, known) {
			return fmt.Errorf("%s %s: %w", what, name, err)
		}
	}
	kind, hint := store.ErrUnavailable, ""
	switch {
	case errors.Is(err, unix.ELOOP):
		kind, hint = store.ErrRefused, ": there is a symbolic link, and none is followed: remove it"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		kind, hint = store.ErrRefused, ": this process may not: let it own the directory"
	case errors.Is(err, unix.EROFS):
		kind, hint = store.ErrRefused, ": the file system is mounted for reading only: mount it for writing"
	case errors.Is(err, unix.ENOENT):
		hint = ": mount it, or make the directory with mode 0700" // a disk that isn't mounted comes back
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		kind, hint = store.ErrRefused, ": a file is where a directory has to be, or the other way round: one of the names goes on from the other"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		hint = ": make room there"
	case errors.Is(err, unix.ENOSYS):
		kind, hint = store.ErrRefused, ": Linux 5.6 or newer is needed"
	}
	return fmt.Errorf("%s %s: %w: %w%s", what, name, kind, err, hint)
}

// elements are the directories of a name, and its last element.
func elements(name string) (dirs []string, base string) {
	all := strings.Split(name, "/")
	return all[:len(all)-1], all[len(all)-1]
}
