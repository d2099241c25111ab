package daemon

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// sandboxName is how gVisor's sandboxes name themselves.
const sandboxName = "runsc-sandbox"

// sandboxesOf are the pids of a shim's sandboxes that live.
func sandboxesOf(shim int) (pids []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", shim))
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // the thread has ended
		}
		for _, f := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(f); err == nil && isSandbox(pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// isSandbox is false for zombies, too: they have no command line.
func isSandbox(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	name, _, _ := bytes.Cut(line, []byte{0})
	return err == nil && filepath.Base(string(name)) == sandboxName
}

// killChild kills a process that is still a parent's sandbox, whatever has its number by now. One that has ended is no error.
func killChild(pid, parent int) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if now, err := parentOf(pid); err != nil || now != parent || !isSandbox(pid) {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, syscall.SIGKILL, nil, 0); !errors.Is(err, unix.ESRCH) {
		return err
	}
	return nil
}

func parentOf(pid int) (int, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	after := stat[bytes.LastIndexByte(stat, ')')+1:] // the name may have anything in it
	f := strings.Fields(string(after))
	if len(f) < 2 {
		return 0, fmt.Errorf("stat of %d is %q", pid, stat)
	}
	return strconv.Atoi(f[1])
}
