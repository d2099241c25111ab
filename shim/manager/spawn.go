package manager

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"github.com/containerd/containerd/v2/pkg/shim"

	"github.com/hibernate-runtime/hibernate/internal/undo"
)

const (
	// ttrpcAddressEnv is where containerd's library finds whom to send events to.
	ttrpcAddressEnv = "TTRPC_ADDRESS"
	// maxVersionEnv is set by containerd from 1.7 on.
	maxVersionEnv = "MAX_SHIM_VERSION"
)

// spawn starts the daemon: this program without an action, in a process group of its own, with socket as descriptor 3
// and the bundle as working directory. It has no standard streams: a daemon that kept those of `start` would keep
// containerd waiting for their end.
func spawn(r *request, bundle string, socket *os.File, u *undo.Stack) (pid int, err error) {
	self, err := os.Executable()
	if err != nil {
		return 0, fmt.Errorf("find this program: %w", err)
	}
	args := []string{"-namespace", r.namespace, "-id", r.id, "-address", r.grpcAddress}
	if r.debug {
		args = append(args, "-debug")
	}
	cmd := exec.Command(self, args...)
	cmd.Dir = bundle
	cmd.Env = os.Environ()
	if r.ttrpcAddress != "" {
		cmd.Env = append(cmd.Env, ttrpcAddressEnv+"="+r.ttrpcAddress)
	}
	cmd.ExtraFiles = []*os.File{socket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start the daemon: %w", err)
	}
	u.Push("kill the daemon", func(context.Context) error {
		return cmd.Process.Kill()
	})
	// Kept alive before others, but not before containerd. That needs a privilege; without it the shim works as well.
	_ = shim.AdjustOOMScore(cmd.Process.Pid)
	return cmd.Process.Pid, nil
}
