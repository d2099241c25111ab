package harness

import (
	"bufio"
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"time"
)

//go:embed world.sh
var worldScript string

const (
	// anchorDeadline bounds making the namespaces, and ending the world's programs.
	anchorDeadline = 30 * time.Second
	unifiedHybrid  = "/sys/fs/cgroup/unified"
	unifiedPure    = "/sys/fs/cgroup"
)

// An anchor is the process that holds a world's namespaces and outlives all its programs.
type anchor struct {
	cmd     *exec.Cmd
	stdin   io.Closer // closing it ends the world
	cgroup  string
	cgroupF *os.File
	closing sync.Once
	err     error
}

func startAnchor(ctx context.Context, w *World) (_ *anchor, err error) {
	ctx, cancel := context.WithTimeout(ctx, anchorDeadline)
	defer cancel()
	if err := os.MkdirAll(filepath.Join(w.Dir, "private"), 0o755); err != nil {
		return nil, err
	}
	a := &anchor{}
	if err := a.openCgroup(w.Name); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(a.cgroup))
		}
	}()
	a.cmd = exec.Command("unshare", "--mount", "--net", "--propagation", "private", "sh", "-c", worldScript)
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // a terminal's interrupt is for us alone: it cleans up after us
	a.cmd.Env = append(os.Environ(),
		"DIR="+w.Dir, "NAME="+w.Name, "CGROUP="+a.cgroup, "PLUGINS="+filepath.Join(w.root, ".tools/cni"),
		"CLIENT_NET="+w.subnets.client, "PLAIN_NET="+w.subnets.plain)
	return a, a.run(ctx)
}

// run starts the process and waits until it says that it is ready.
func (a *anchor) run(ctx context.Context) error {
	var stderr bytes.Buffer
	a.cmd.Stderr = &stderr
	stdin, err := a.cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := a.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	a.stdin = stdin
	if err := a.cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { a.cmd.Process.Kill() })
	defer stop()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err == nil && line == "ready\n" {
		return nil
	}
	a.cmd.Process.Kill()
	return fmt.Errorf("unshare: %w: %s", errors.Join(a.cmd.Wait(), ctx.Err()), bytes.TrimSpace(stderr.Bytes()))
}

func (a *anchor) pid() int { return a.cmd.Process.Pid }

// openCgroup makes the world's cgroup in the unified hierarchy, which a hybrid machine has, too.
func (a *anchor) openCgroup(name string) (err error) {
	top := unifiedHybrid
	if _, err := os.Stat(filepath.Join(top, "cgroup.procs")); err != nil {
		top = unifiedPure
	}
	if _, err := os.Stat(filepath.Join(top, "cgroup.controllers")); err != nil {
		return fmt.Errorf("no unified cgroup hierarchy is mounted: %w", err)
	}
	a.cgroup = filepath.Join(top, name)
	if err := os.Mkdir(a.cgroup, 0o755); err != nil {
		return err
	}
	a.cgroupF, err = os.Open(a.cgroup)
	return err
}

// close ends the world, and waits until it is gone.
func (a *anchor) close() error {
	a.closing.Do(func() {
		a.cgroupF.Close()
		a.stdin.Close()
		timer := time.AfterFunc(anchorDeadline, func() { a.cmd.Process.Kill() })
		defer timer.Stop()
		a.cmd.Wait() // its status is its last rm's
		if _, err := os.Stat(a.cgroup); err == nil {
			a.err = fmt.Errorf("%s is still there: a program of the world could not be ended", a.cgroup)
		}
	})
	return a.err
}
