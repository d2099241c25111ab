package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"golang.org/x/sys/unix"
)

func (l *legacy) kills() (uint64, error) {
	return readField(filepath.Join(l.roots[cgroup1.Memory], "memory.oom_control"), "oom_kill")
}

// watch has the kernel count up an eventfd when the group is out of memory, and
// when it is removed.
func (l *legacy) watch() (counter, error) {
	dir := l.roots[cgroup1.Memory]
	control, err := os.Open(filepath.Join(dir, "memory.oom_control"))
	if err != nil {
		return nil, err
	}
	defer control.Close() // the kernel needs it only to register
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &legacyKills{File: os.NewFile(uintptr(fd), "out-of-memory events"), group: l}
	line := fmt.Sprintf("%d %d", fd, control.Fd())
	if err := os.WriteFile(filepath.Join(dir, "cgroup.event_control"), []byte(line), 0); err != nil {
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// legacyKills is the eventfd, by which the count is known to be about to grow.
type legacyKills struct {
	*os.File
	group *legacy
}

// The kernel tells that it looks for a process to kill before it counts the
// kill, and tells so, too, when it finds memory in the end.
const (
	settleFor   = 500 * time.Millisecond
	settleEvery = 5 * time.Millisecond
)

func (k *legacyKills) next(last uint64) (uint64, error) {
	for {
		var b [8]byte
		if _, err := k.Read(b[:]); err != nil {
			return 0, err
		}
		for end := time.Now().Add(settleFor); time.Now().Before(end); time.Sleep(settleEvery) {
			now, err := k.group.kills()
			if err != nil { // the group is gone
				break
			}
			if now > last {
				return now, nil
			}
		}
	}
}
