package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// lastWords is how long programs have between SIGTERM and SIGKILL. systemd gives them 90 s, and most of ours ignore it.
const lastWords = 300 * time.Millisecond

// Reboot ends every program of the world, and takes away what no machine's run outlives: run directories, mounts, network namespaces of
// pods (the client's stays), control groups. In order it is as systemd does it in the end, when all units are stopped: SIGTERM to all, then
// SIGKILL. Else it is as when the power fails: no program does anything more. Pods can be made and programs started then.
func (w *World) Reboot(ctx context.Context, inOrder bool) error {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	if inOrder {
		if err := w.signalAll(syscall.SIGTERM); err != nil {
			return err
		}
		time.Sleep(lastWords)
	}
	if err := w.cutOff(ctx); err != nil {
		return fmt.Errorf("end all programs: %w", err)
	}
	for _, p := range []*Program{w.Daemon, w.Containerd} {
		if err := p.Kill(); err != nil { // it has ended; this waits until that is known
			return err
		}
	}
	_, err := w.Shell(ctx, fmt.Sprintf(`
awk '{ print $5 }' /proc/self/mountinfo | grep -E '^(%[1]s/(run|state|containerd|data)|/run/netns)/' | grep -v '^/run/netns/client$' | sort -r |
	while read -r m; do umount -l "$m"; done
for n in /run/netns/*; do [ "$n" = /run/netns/client ] || rm -f "$n"; done
ip -o link show type veth | awk -F'[ @:]+' '$2 ~ /^veth/ { print $2 }' | while read -r l; do ip link delete "$l" 2>/dev/null || :; done
rm -rf --one-file-system %[1]s/run %[1]s/state /run/containerd
mkdir -m 700 %[1]s/run
find /sys/fs/cgroup -mindepth 2 -depth -type d \( -path '/sys/fs/cgroup/%[2]s/*' -o -path '/sys/fs/cgroup/*/%[2]s/*' \) -exec rmdir {} + 2>/dev/null || :`,
		w.Dir, w.Name))
	return err
}

func (w *World) signalAll(s syscall.Signal) error {
	all, err := w.Processes()
	if err != nil {
		return err
	}
	for _, p := range all {
		if err := syscall.Kill(p.Pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("pid %d: %w", p.Pid, err)
		}
	}
	return nil
}

// cutOff ends all programs in one moment, so that none sees another's end. None is started meanwhile: it would be frozen before it is a program of its own, and
// this process with it.
func (w *World) cutOff(ctx context.Context) error {
	w.starting.Lock()
	defer w.starting.Unlock()
	file := func(name string) string { return filepath.Join(w.anchor.cgroup, name) }
	if err := os.WriteFile(file("cgroup.freeze"), []byte("1"), 0); err != nil {
		return err
	}
	is := func(what string) func() (bool, error) {
		return func() (bool, error) {
			b, err := os.ReadFile(file("cgroup.events"))
			return strings.Contains(string(b), what), err
		}
	}
	if err := poll(ctx, 5*time.Millisecond, is("frozen 1")); err != nil {
		return err
	}
	if err := w.signalAll(syscall.SIGKILL); err != nil { // which the frozen obey, too
		return err
	}
	if err := poll(ctx, 5*time.Millisecond, is("populated 0")); err != nil {
		return err
	}
	return os.WriteFile(file("cgroup.freeze"), []byte("0"), 0)
}

// Stop stops every program of the world, as a machine that is stopped by its hypervisor; its clocks go on. Programs that are started later run.
func (w *World) Stop() error {
	w.starting.Lock()
	defer w.starting.Unlock()
	return errors.Join(w.signalAll(syscall.SIGSTOP), w.signalAll(syscall.SIGSTOP)) // again, for those that were born meanwhile
}

// Continue has them go on.
func (w *World) Continue() error { return w.signalAll(syscall.SIGCONT) }
