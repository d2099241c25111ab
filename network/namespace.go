package network

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

const ownNamespace = "/proc/thread-self/ns/net"

// NewNamespace makes a network namespace and bind-mounts it at path, whose
// directory is created. os.ErrExist when a namespace is mounted there already.
func NewNamespace(path string) error {
	if isNamespace(path) {
		return fmt.Errorf("network namespace %s: %w", path, os.ErrExist)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return fmt.Errorf("directory of network namespace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o400)
	if err != nil {
		return fmt.Errorf("mount point of network namespace: %w", err)
	}
	f.Close()
	done := make(chan error, 1)
	go func() { done <- mountFresh(path) }()
	if err := <-done; err != nil {
		return errors.Join(fmt.Errorf("network namespace %s: %w", path, err), os.Remove(path))
	}
	return nil
}

func mountFresh(path string) error {
	return away(func() error {
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount(ownNamespace, path, "none", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind mount: %w", err)
		}
		return nil
	})
}

// RemoveNamespace undoes NewNamespace; nothing there is no error. The namespace
// itself goes when its last process and descriptor are gone.
func RemoveNamespace(path string) error {
	for isNamespace(path) {
		if err := unix.Unmount(path, unix.MNT_DETACH); err != nil {
			return fmt.Errorf("unmount network namespace %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("mount point of network namespace: %w", err)
	}
	return nil
}

func isNamespace(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.NSFS_MAGIC
}

func openNamespace(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open network namespace: %w", err)
	}
	if !isNamespace(path) {
		f.Close()
		return nil, fmt.Errorf("open network namespace: %s is not one", path)
	}
	return f, nil
}

// isOwn tells whether ns is the namespace of this process. (Of a thread that is not
// inside another: the main thread may be stuck in one.)
func isOwn(ns *os.File) (bool, error) {
	here, err := os.Stat(ownNamespace)
	if err != nil {
		return false, fmt.Errorf("own network namespace: %w", err)
	}
	there, err := ns.Stat()
	if err != nil {
		return false, fmt.Errorf("network namespace %s: %w", ns.Name(), err)
	}
	return os.SameFile(here, there), nil
}

// enter runs fn on a thread inside ns and comes back. fn must not start
// goroutines and expect them inside.
func enter(ns *os.File, fn func() error) error {
	done := make(chan error, 1)
	go func() {
		done <- away(func() error {
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("enter network namespace %s: %w", ns.Name(), err)
			}
			return fn()
		})
	}()
	err := <-done
	runtime.KeepAlive(ns)
	return err
}

// away lets fn take the thread to another namespace and brings it back. To be
// called on a goroutine of its own: a thread that can't come back stays locked
// to it, and so is never used again.
func away(fn func() error) error {
	runtime.LockOSThread()
	home, err := os.Open(ownNamespace)
	if err != nil {
		runtime.UnlockOSThread()
		return fmt.Errorf("own network namespace: %w", err)
	}
	defer home.Close()
	defer func() {
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
	}()
	return fn()
}
