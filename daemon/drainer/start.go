package drainer

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// A Workload is whose connections are carried on.
type Workload struct {
	Namespace   string               `json:"namespace"`
	ID          string               `json:"id"`
	Connections []wakeproxy.Detached `json:"connections"`
}

// plan is what a drainer is told.
type plan struct {
	RunDir    string        `json:"run_dir"`
	Limit     time.Duration `json:"limit"`
	Workloads []Workload    `json:"workloads"`
}

// Starter starts drainers.
type Starter struct {
	// Path and Args are the program that calls Run, Args[0] included. "/proc/self/exe" is this very version.
	Path string
	Args []string
	// RunDir holds the shims' records.
	RunDir string
	// Limit is how long connections may go on.
	Limit time.Duration
	// Env is its environment; nil: this process's.
	Env []string
}

// Start starts a drainer for the workloads' connections, and returns it. Their descriptors are closed here; with an error the
// connections have been reset.
func (s Starter) Start(workloads []Workload) (*os.Process, error) {
	process, err := s.start(workloads)
	for _, w := range workloads {
		for i := range w.Connections {
			if err != nil {
				w.Connections[i].Reset()
			} else {
				w.Connections[i].Close()
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("connections are reset: no process could be started to carry them on: %w", err)
	}
	return process, nil
}

func (s Starter) start(workloads []Workload) (*os.Process, error) {
	files := []uintptr{0, 1, 2}
	p := plan{RunDir: s.RunDir, Limit: s.Limit}
	for _, w := range workloads {
		theirs := Workload{Namespace: w.Namespace, ID: w.ID}
		for _, d := range w.Connections {
			for _, fd := range d.Descriptors() {
				files = append(files, uintptr(*fd))
				*fd = len(files) - 1
			}
			theirs.Connections = append(theirs.Connections, d)
		}
		p.Workloads = append(p.Workloads, theirs)
	}
	told, err := p.file()
	if err != nil {
		return nil, err
	}
	defer told.Close()
	files[0] = told.Fd()
	// With a group of its own it doesn't end by what a terminal sends to the daemon.
	env := s.Env
	if env == nil {
		env = os.Environ()
	}
	pid, err := syscall.ForkExec(s.Path, s.Args, &syscall.ProcAttr{Env: env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return os.FindProcess(pid)
}

// file has the plan, from its beginning. It is nowhere on disk.
func (p plan) file() (*os.File, error) {
	fd, err := unix.MemfdCreate("drainer", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "drainer")
	err = json.NewEncoder(f).Encode(p)
	if err == nil {
		_, err = f.Seek(0, 0)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
