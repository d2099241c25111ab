package snapshot

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

const lockFile = "lock"

// acquire makes dir and takes its lock for this process, or says who has it. The
// kernel gives the lock back when the process dies, however it dies.
func acquire(dir string) (*os.File, error) {
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, spaceError(err)
		}
		f, err := os.OpenFile(filepath.Join(dir, lockFile), os.O_RDWR|os.O_CREATE, 0o600)
		if errors.Is(err, os.ErrNotExist) {
			continue // Removed in between.
		}
		if err != nil {
			return nil, spaceError(err)
		}
		kept, err := lock(f, dir)
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		if kept {
			return f, nil
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
}

// lock returns false when the file was removed between open and lock: the
// former owner has ended, and a new file has to be tried.
func lock(f *os.File, dir string) (bool, error) {
	err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return false, &BusyError{Dir: dir, Pid: holder(f)}
	}
	if err != nil {
		return false, fmt.Errorf("lock %s: %w", dir, err)
	}
	mine, err := f.Stat()
	if err != nil {
		return false, err
	}
	there, err := os.Stat(f.Name())
	if errors.Is(err, os.ErrNotExist) || err == nil && !os.SameFile(mine, there) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	// The pid is for the other's error message: the lock holds without it.
	_ = f.Truncate(0)
	_, _ = f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return true, nil
}

func holder(f *os.File) int {
	var b [24]byte
	n, _ := f.ReadAt(b[:], 0)
	pid, _ := strconv.Atoi(string(bytes.TrimSpace(b[:n])))
	return pid
}
