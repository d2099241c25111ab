package cgroup

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func (u *unified) kills() (uint64, error) { return readField(u.events(), "oom_kill") }

func (u *unified) watch() (counter, error) { return watchField(u.events(), "oom_kill") }

// events counts the group's wants of memory.
func (u *unified) events() string { return filepath.Join(u.dir(), "memory.events") }

// fieldWatch waits for a number in a file that the kernel tells changes of. It
// uses the file alone, and none of the few inotify instances of a host.
type fieldWatch struct {
	*os.File
	field string
}

func watchField(path, field string) (counter, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	if err := f.SetReadDeadline(time.Time{}); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%s can't be polled: %w", path, err)
	}
	return &fieldWatch{f, field}, nil
}

func (w *fieldWatch) next(last uint64) (now uint64, err error) {
	conn, err := w.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = conn.Read(func(fd uintptr) bool { // called again at each change
		now, failed = w.read(int(fd))
		return failed != nil || now > last
	})
	if err == nil {
		err = failed
	}
	return now, err
}

// read reads from the start: the kernel tells the next change to whoever has
// read the last one.
func (w *fieldWatch) read(fd int) (uint64, error) {
	var b [4096]byte
	n, err := unix.Pread(fd, b[:], 0)
	if err != nil {
		return 0, err
	}
	return field(string(b[:n]), w.field)
}
