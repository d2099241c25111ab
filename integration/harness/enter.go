package harness

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sys/unix"
)

// Enter moves the calling thread, which the caller has locked and never unlocks, into the world's mount and network
// namespaces: programs started from it are as if an inhabitant had started them, without a helper in between that costs
// time.
func (w *World) Enter() error {
	if err := unix.Unshare(unix.CLONE_FS); err != nil { // else a mount namespace can't be changed
		return fmt.Errorf("enter world: %w", err)
	}
	for _, kind := range []string{"mnt", "net"} {
		if err := enter(fmt.Sprintf("/proc/%d/ns/%s", w.anchor.pid(), kind)); err != nil {
			return err
		}
	}
	return nil
}

// EnterClient moves the calling thread, locked as for Enter, into the client's network namespace.
func (w *World) EnterClient() error { return enter(w.Path("/run/netns/client")) }

func enter(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("enter world: %w", err)
	}
	defer f.Close()
	if err := unix.Setns(int(f.Fd()), 0); err != nil {
		return fmt.Errorf("enter %s: %w", path, err)
	}
	return nil
}

// Adopt makes cmd be born in the world's cgroup, so that it and its children end with the world. Command does it itself.
func (w *World) Adopt(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD, cmd.SysProcAttr.CgroupFD = true, int(w.anchor.cgroupF.Fd())
}
