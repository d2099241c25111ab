package harness

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A Process is one of the world's.
type Process struct {
	Pid, Parent int
	Argv        []string // at least one; a program's name in brackets when it has no arguments
}

// Processes are all that live in the world, containerd and the daemon included; the anchor is not.
func (w *World) Processes() ([]Process, error) {
	var all []Process
	err := filepath.WalkDir(w.anchor.cgroup, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			if p, ok := readProcess(pid); ok {
				all = append(all, p)
			}
		}
		return nil
	})
	return all, err
}

// readProcess is false for a process that is gone, or a zombie.
func readProcess(pid int) (Process, bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Process{}, false
	}
	name, rest, _ := strings.Cut(string(stat), ") ")
	f := strings.Fields(rest)
	if len(f) < 2 || f[0] == "Z" || f[0] == "X" {
		return Process{}, false
	}
	parent, err := strconv.Atoi(f[1])
	if err != nil {
		return Process{}, false
	}
	cmdline, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return Process{}, false
	}
	argv := strings.Split(strings.TrimRight(string(cmdline), "\x00"), "\x00")
	if argv[0] == "" {
		_, name, _ = strings.Cut(name, "(")
		argv = []string{"[" + name + "]"}
	}
	return Process{pid, parent, argv}, true
}

// Descriptors counts what a process has open.
func Descriptors(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	return len(entries), err
}
