package filestore

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// The store's own, below its root: no name of an object has an element that begins with a dot.
const (
	ownDir  = ".store"
	tempDir = ownDir + "/tmp"
	lockDir = ownDir + "/locks"
)

// placeTries is how often a place is made anew that a Delete has just cleaned up.
const placeTries = 1000

func (s *Store) Put(ctx context.Context, name string, body []byte, cond store.Condition) (store.Version, error) {
	if err := store.CheckPut(name, body, cond); err != nil {
		return "", err
	}
	return during(ctx, s, "put", name, func() (store.Version, error) {
		temp, err := s.writeTemp(body)
		if err != nil {
			return "", err
		}
		defer temp.remove()
		if cond.Absent {
			return temp.version, s.create(name, temp)
		}
		unlock, err := s.lock(ctx, name)
		if err != nil {
			return "", err
		}
		defer unlock()
		if cond.Version != "" {
			if err := s.holds(name, cond.Version); err != nil {
				return "", err
			}
		}
		return temp.version, s.replace(name, temp)
	})
}

// holds says why a version isn't what is there.
func (s *Store) holds(name string, want store.Version) error {
	f, err := s.read(name, 1<<62)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return fmt.Errorf("%w: it isn't there", store.ErrChanged)
	case err != nil:
		return err
	case f.info.Version != want:
		return fmt.Errorf("%w: it has version %s; wanted was %s", store.ErrChanged, f.info.Version, want)
	}
	return nil
}

// create gives the file its name where nothing is.
func (s *Store) create(name string, t *temp) error {
	return s.place(name, t, func(dir int, base string) error {
		err := unix.Linkat(t.dir, t.name, dir, base, 0)
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) { // a file system without hard links
			err = unix.Renameat2(t.dir, t.name, dir, base, unix.RENAME_NOREPLACE)
		}
		if !errors.Is(err, unix.EEXIST) {
			return err
		}
		// A network file system repeats a request whose answer was lost; the second name of our file tells it.
		if links, err := t.links(); err == nil && links == 2 {
			return nil
		}
		if err := regular(dir, base); err != nil {
			return err
		}
		return store.ErrExists
	})
}

// replace gives the file its name, whatever is there. The caller holds the name's lock.
func (s *Store) replace(name string, t *temp) error {
	return s.place(name, t, func(dir int, base string) error {
		if err := regular(dir, base); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
		return unix.Renameat(t.dir, t.name, dir, base)
	})
}

// regular says why what is there can't be an object.
func regular(dir int, base string) error {
	var stat unix.Stat_t
	if err := unix.Fstatat(dir, base, &stat, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	switch stat.Mode & unix.S_IFMT {
	case unix.S_IFREG:
		return nil
	case unix.S_IFDIR:
		return unix.EISDIR
	case unix.S_IFLNK:
		return unix.ELOOP
	}
	return fmt.Errorf("%w: a device or socket is there: remove it", store.ErrRefused)
}

// place makes the directories of a name, and names the file in the last; then all of that is on the disk. The directories
// up to the root are fsynced though they may be old: another process may have just made them.
func (s *Store) place(name string, t *temp, put func(dir int, base string) error) error {
	dirs, base := elements(name)
	for try := 1; ; try++ {
		path, err := s.makeDirs(dirs)
		if err == nil {
			t.touch()
			err = put(path.last(), base)
		}
		if err == nil {
			err = path.sync()
		}
		path.close()
		if errors.Is(err, unix.ENOENT) && try < placeTries {
			continue // the directory was empty for a moment, and somebody removed it
		}
		return err
	}
}

// dirPath are the open directories from the root down.
type dirPath struct{ fds []int }

func (p *dirPath) last() int { return p.fds[len(p.fds)-1] }

func (p *dirPath) sync() error {
	for i := len(p.fds) - 1; i >= 0; i-- {
		if err := unix.Fsync(p.fds[i]); err != nil {
			return fmt.Errorf("fsync of a directory: %w", err)
		}
	}
	return nil
}

func (p *dirPath) close() {
	for _, fd := range p.fds {
		unix.Close(fd)
	}
}

// makeDirs opens directories below the root, and makes those that aren't there. The path is to be closed also after an error.
func (s *Store) makeDirs(dirs []string) (*dirPath, error) {
	p, err := s.openDirs(nil)
	if err != nil {
		return p, err
	}
	for _, element := range dirs {
		fd, err := beneath(p.last(), element, unix.O_RDONLY|unix.O_DIRECTORY)
		if errors.Is(err, unix.ENOENT) {
			if err := unix.Mkdirat(p.last(), element, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
				return p, err
			}
			fd, err = beneath(p.last(), element, unix.O_RDONLY|unix.O_DIRECTORY)
		}
		if err != nil {
			return p, err
		}
		p.fds = append(p.fds, fd)
	}
	return p, nil
}

// openDirs opens directories that are there. The path is to be closed also after an error.
func (s *Store) openDirs(dirs []string) (*dirPath, error) {
	p := &dirPath{}
	root, err := beneath(s.fd(), ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return p, err
	}
	p.fds = append(p.fds, root)
	for _, element := range dirs {
		fd, err := beneath(p.last(), element, unix.O_RDONLY|unix.O_DIRECTORY)
		if err != nil {
			return p, err
		}
		p.fds = append(p.fds, fd)
	}
	return p, nil
}

func (s *Store) Delete(ctx context.Context, name string) error {
	if err := store.CheckName(name); err != nil {
		return err
	}
	_, err := during(ctx, s, "delete", name, func() (struct{}, error) {
		unlock, err := s.lock(ctx, name)
		if err != nil {
			return struct{}{}, err
		}
		defer unlock()
		return struct{}{}, s.remove(name)
	})
	return err
}

// remove removes an object, and the directories that are empty then. The caller holds the name's lock.
func (s *Store) remove(name string) error {
	dirs, base := elements(name)
	path, err := s.openDirs(dirs)
	defer path.close()
	if err == nil {
		err = regular(path.last(), base)
	}
	if err == nil {
		err = unix.Unlinkat(path.last(), base, 0)
	}
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR):
		return nil // no object has the name
	case err != nil:
		return err
	}
	if err := unix.Fsync(path.last()); err != nil {
		return fmt.Errorf("fsync of a directory: %w", err)
	}
	// One that isn't empty stays: that is the kernel's decision, and so no race with those who come.
	for i := len(dirs) - 1; i >= 0; i-- {
		if unix.Unlinkat(path.fds[i], dirs[i], unix.AT_REMOVEDIR) != nil {
			break
		}
	}
	return nil
}

// temp is a file that is complete on the disk and has no object's name yet.
type temp struct {
	file    *os.File // locked as long as it is open, so that nobody takes it for a leftover
	dir     int      // tempDir
	name    string
	version store.Version
}

// writeTemp writes one.
func (s *Store) writeTemp(body []byte) (*temp, error) {
	t, err := s.newTemp()
	if err != nil {
		return nil, err
	}
	if _, err = t.file.Write(body); err == nil {
		err = t.file.Sync()
	}
	if err != nil {
		t.remove()
		return nil, err
	}
	t.version = versionOf(body)
	return t, nil
}

// newTemp makes an empty one.
func (s *Store) newTemp() (*temp, error) {
	dir, err := beneath(s.fd(), tempDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	for {
		b := make([]byte, 16)
		rand.Read(b)
		name := hex.EncodeToString(b)
		fd, err := unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
		if err != nil {
			unix.Close(dir)
			return nil, err
		}
		t := &temp{file: os.NewFile(uintptr(fd), tempDir+"/"+name), dir: dir, name: name}
		err = unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		links, linkErr := t.links()
		if err == nil && linkErr == nil && links == 1 {
			return t, nil
		}
		t.file.Close() // another process took it for a leftover in just that moment
		if err != nil && !errors.Is(err, unix.EWOULDBLOCK) {
			unix.Unlinkat(dir, name, 0)
			unix.Close(dir)
			return nil, fmt.Errorf("flock: %w", err)
		}
	}
}

// links are how many names the file has.
func (t *temp) links() (uint64, error) {
	var stat unix.Stat_t
	if err := unix.Fstat(int(t.file.Fd()), &stat); err != nil {
		return 0, err
	}
	return uint64(stat.Nlink), nil
}

// touch makes now, by the file system's clock, the time when the object was modified: it may have waited for a lock.
func (t *temp) touch() {
	now := []unix.Timespec{{Nsec: unix.UTIME_NOW}, {Nsec: unix.UTIME_NOW}}
	unix.UtimesNanoAt(t.dir, t.name, now, unix.AT_SYMLINK_NOFOLLOW)
}

// remove removes the name that the file was written under, if it still has it.
func (t *temp) remove() {
	unix.Unlinkat(t.dir, t.name, 0)
	t.file.Close()
	unix.Close(t.dir)
}

// removeLeftovers removes files that nobody writes any more: their locks are free.
func (s *Store) removeLeftovers() error {
	fd, err := beneath(s.fd(), tempDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return classify("open", s.path+"/"+tempDir, err)
	}
	dir := os.NewFile(uintptr(fd), tempDir)
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return classify("read", s.path+"/"+tempDir, err)
	}
	for _, name := range names {
		file, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			continue // gone, or nothing of ours
		}
		if unix.Flock(file, unix.LOCK_EX|unix.LOCK_NB) == nil {
			unix.Unlinkat(fd, name, 0)
		}
		unix.Close(file)
	}
	return nil
}

// lock waits for the lock of a name.
func (s *Store) lock(ctx context.Context, name string) (unlock func(), err error) {
	fd, err := s.lockFile(name)
	if err != nil {
		return nil, err
	}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { unix.Close(fd) }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			unix.Close(fd)
			return nil, fmt.Errorf("flock: %w", err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			unix.Close(fd)
			return nil, fmt.Errorf("waiting for others that write it: %w", ctx.Err())
		}
	}
}

// lockFile opens one of 256 files, which are never removed.
func (s *Store) lockFile(name string) (int, error) {
	dir, err := beneath(s.fd(), lockDir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return -1, err
	}
	defer unix.Close(dir)
	return unix.Openat(dir, string(versionOf([]byte(name))[:2]), unix.O_CREAT|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
}
