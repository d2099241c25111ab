package sandbox

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/shim/cgroup"
)

// holder is the process whose pid containerd knows as the task's: it lives in the pod's network namespace, pins it, and
// stays from Create to Delete whatever becomes of the sandbox.
type holder struct {
	process
	given    string // path of the pod's namespace when the spec gives one; "" when the holder made it
	podInode uint64
	host     bool // the host's network: no namespace of its own

	settled *os.File // where the holder says that it has left the host's files; closed when it has
}

// settleLimit is how long a holder may take for that: it has a millisecond of work.
const settleLimit = 10 * time.Second

// ownNamespaces are those that others join by the task's pid (a container with another's pid namespace, a debugger): the
// sandbox has its own inside, and the host's are not for them.
const ownNamespaces = unix.CLONE_NEWPID | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS

// podNamespace returns the spec's network namespace: its path, whether it is the host's, and whether it must be made.
func podNamespace(spec *specs.Spec) (path string, host bool) {
	if spec.Linux != nil {
		for _, n := range spec.Linux.Namespaces {
			if n.Type == specs.NetworkNamespace {
				return n.Path, false
			}
		}
	}
	return "", true
}

// startHolder starts helper in the network namespace that the spec asks for. It is born in the container's control group:
// to move it there takes the kernel longer than to start it.
func startHolder(helper string, spec *specs.Spec, group *cgroup.Group) (*holder, error) {
	path, host := podNamespace(spec)
	cmd := exec.Command(helper, "hold")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Cloneflags: ownNamespaces}
	if path == "" && !host {
		cmd.SysProcAttr.Cloneflags |= unix.CLONE_NEWNET
	}
	settled, ready, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("holder process: %w", err)
	}
	cmd.ExtraFiles = []*os.File{ready}
	err = startIn(path, group, cmd)
	_ = ready.Close()
	if err != nil {
		_ = settled.Close()
		return nil, fmt.Errorf("holder process %s: %w", helper, err)
	}
	h := &holder{process: identify(cmd.Process.Pid), given: path, host: host, settled: settled}
	_ = cmd.Process.Release() // the shim's reaper sees its end
	info, err := os.Stat(h.namespace())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("holder process: %w", err), h.kill(), h.forget())
	}
	h.podInode = info.Sys().(*syscall.Stat_t).Ino
	return h, nil
}

// await returns when the holder has left the host's files: before, nobody may be told its pid, by which they would be
// taken for the container's. It may be called again.
func (h *holder) await() error {
	if h.settled == nil {
		return nil
	}
	defer func() { _ = h.settled.Close(); h.settled = nil }()
	if err := h.settled.SetReadDeadline(time.Now().Add(settleLimit)); err != nil {
		return fmt.Errorf("holder process: %w", err)
	}
	if _, err := h.settled.Read(make([]byte, 1)); err != nil {
		return fmt.Errorf("holder process: it did not settle; is the helper of another version? %w", err)
	}
	return nil
}

// forget gives up a holder that was not waited for.
func (h *holder) forget() error {
	if h.settled == nil {
		return nil
	}
	return h.settled.Close()
}

// namespace is the path of the pod's network namespace for as long as the holder lives.
func (h *holder) namespace() string { return fmt.Sprintf("/proc/%d/ns/net", h.Pid) }

// startIn starts cmd in the group and in the network namespace at path; in the caller's namespace when path is empty.
func startIn(path string, group *cgroup.Group, cmd *exec.Cmd) error {
	done := make(chan error, 1)
	go func() { // a thread that can't go back is ended with its goroutine
		done <- group.Spawn(cmd, func() error {
			if path == "" {
				return cmd.Start()
			}
			return inNamespace(path, cmd.Start)
		})
	}()
	return <-done
}

// inNamespace calls act with the calling thread in the network namespace at path. When the thread can't go back, it stays
// locked to its goroutine.
func inNamespace(path string, act func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err == nil {
		err = enterNamespace(path)
	}
	if err != nil {
		runtime.UnlockOSThread()
		_ = home.Close()
		return err
	}
	defer home.Close()
	err = act()
	if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
		runtime.UnlockOSThread()
	}
	return err
}

func enterNamespace(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}
