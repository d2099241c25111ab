package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// commandDeadline is for commands whose caller gave no deadline.
const commandDeadline = time.Minute

// Command prepares a program inside the world. name is looked up in bin/, .tools/ and PATH. Its working directory is /.
// It is killed when ctx ends, and not interrupted with us from a terminal.
func (w *World) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	enter := []string{"--target", strconv.Itoa(w.anchor.pid()), "--mount", "--net", "--", w.lookup(name)}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+w.searchPath())
	cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(w.anchor.cgroupF.Fd()), Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Output runs a program inside the world and returns what it printed. The error carries standard error's end.
func (w *World) Output(ctx context.Context, name string, args ...string) (string, error) {
	began := time.Now()
	out, err := w.output(ctx, name, args...)
	w.logf("%s %s (%s)", name, strings.Join(args, " "), time.Since(began).Round(time.Millisecond))
	return out, err
}

// output is Output without a word in the log.
func (w *World) output(ctx context.Context, name string, args ...string) (string, error) {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := w.Command(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := w.start(cmd)
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return stdout.String(), &CommandError{Name: name, Args: args, Stderr: tail(stderr.String(), 2000), Err: errors.Join(err, ctx.Err())}
	}
	return stdout.String(), nil
}

// start starts a program, unless all are being stopped or ended at the moment: then it waits for that.
func (w *World) start(cmd *exec.Cmd) error {
	w.starting.RLock()
	defer w.starting.RUnlock()
	return cmd.Start()
}

// Shell runs a script in the world, and stops at its first error.
func (w *World) Shell(ctx context.Context, script string) (string, error) {
	return w.Output(ctx, "sh", "-ec", script)
}

// A CommandError is a program that failed. errors.As finds its *exec.ExitError with the status.
type CommandError struct {
	Name   string
	Args   []string
	Stderr string
	Err    error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("%s %s: %v: %s", e.Name, strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Stderr))
}

func (e *CommandError) Unwrap() error { return e.Err }

// Program is the path of a program of bin/ or .tools/, or its name when it is in neither.
func (w *World) Program(name string) string { return w.lookup(name) }

func (w *World) lookup(name string) string {
	for _, dir := range []string{"bin", ".tools"} {
		if p := filepath.Join(w.root, dir, name); isExecutable(p) {
			return p
		}
	}
	return name
}

func (w *World) searchPath() string {
	return strings.Join([]string{filepath.Join(w.root, "bin"), filepath.Join(w.root, ".tools"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, ":")
}

func isExecutable(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.Mode().IsRegular() && fi.Mode()&0o111 != 0
}

// withDeadline adds a deadline where the caller has none.
func withDeadline(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, d)
}

// poll calls done until it says true or ctx ends; the error then has done's last one.
func poll(ctx context.Context, every time.Duration, done func() (bool, error)) error {
	for tick := time.NewTicker(every); ; {
		ok, err := done()
		if ok {
			tick.Stop()
			return nil
		}
		select {
		case <-ctx.Done():
			tick.Stop()
			return errors.Join(ctx.Err(), err)
		case <-tick.C:
		}
	}
}

func tail(s string, n int) string {
	if len(s) > n {
		return "…" + s[len(s)-n:]
	}
	return s
}
