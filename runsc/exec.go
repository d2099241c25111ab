package runsc

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ExecOptions say what to run in a container.
type ExecOptions struct {
	Process *specs.Process // args, env, cwd (absolute), user; terminal as it is
	IO      IO
	// ConsoleSocket, with Process.Terminal, is a unix socket that gets the
	// master of a new pty; IO is not used then.
	ConsoleSocket string
	// Executable, when set, is a host file to run instead of what args[0]
	// names: nothing of the container's file system is needed.
	Executable *os.File
}

type execKey struct {
	id  string
	pid int
}

// execution is one exec: a `runsc exec` process that lives as long as its
// process inside and ends with its status.
type execution struct {
	done chan struct{}
	err  error                   // valid once done is closed
	kill context.CancelCauseFunc // of the runsc exec
}

// Exec starts a process and returns its pid as seen inside, once it runs. The
// process lives on when ctx ends. Each Exec wants one WaitExec. ErrNotRunning
// when the container is paused or has no init.
func (c *Client) Exec(ctx context.Context, id string, o ExecOptions) (int, error) {
	op, err := c.execCall(id, o)
	if err != nil {
		return 0, err
	}
	defer op.release()
	started, report, err := os.Pipe()
	if err != nil {
		return 0, fmt.Errorf("exec in %s: %w", id, err)
	}
	defer started.Close()
	op.reportPid(report)

	life, kill := context.WithCancelCause(context.WithoutCancel(ctx))
	e := &execution{done: make(chan struct{}), kill: kill}
	go func() {
		defer close(e.done)
		defer kill(nil)
		_, e.err = c.run(life, op.call)
		_ = report.Close()
	}()
	pid, err := c.awaitPid(ctx, started)
	if err != nil {
		kill(err)
		<-e.done
		return 0, notStarted(id, e.err, err)
	}
	c.remember(execKey{id, pid}, e)
	return pid, nil
}

// notStarted prefers runsc's own reason over that of the wait for the pid.
func notStarted(id string, runErr, waitErr error) error {
	if runErr != nil {
		return runErr
	}
	return &Error{Command: "exec", ID: id, Message: waitErr.Error(), Kind: waitErr}
}

var errNoPid = errors.New("runsc exec ended without starting the process")

// awaitPid reads the pid that runsc writes once the process runs.
func (c *Client) awaitPid(ctx context.Context, started *os.File) (int, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeouts.exec(), ErrDeadline)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = started.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 32)
	n, err := started.Read(buf)
	switch {
	case ctx.Err() != nil:
		return 0, ended(ctx)
	case err != nil:
		return 0, errNoPid
	}
	return strconv.Atoi(string(bytes.TrimSpace(buf[:n])))
}

func (c *Client) remember(key execKey, e *execution) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.execs == nil {
		c.execs = make(map[execKey]*execution)
	}
	c.execs[key] = e
}

// WaitExec waits for a process that Exec started and gives its exit status, 128
// plus the signal's number when a signal ended it. It has no deadline but ctx,
// and may be called again until it has returned the status. An error, other
// than that of ctx, means that the sandbox went away under the process.
func (c *Client) WaitExec(ctx context.Context, id string, insidePid int) (int, error) {
	key := execKey{id, insidePid}
	e, err := c.executionOf(key)
	if err != nil {
		return 0, err
	}
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-e.done:
	}
	c.mu.Lock()
	if c.execs[key] == e {
		delete(c.execs, key)
	}
	c.mu.Unlock()
	return exitStatus(e.err)
}

func (c *Client) executionOf(key execKey) (*execution, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.execs[key]; e != nil {
		return e, nil
	}
	return nil, &Error{Command: "exec", ID: key.id, Message: fmt.Sprintf("no exec with pid %d", key.pid), Kind: ErrNotFound}
}

// EndExec kills a process that Exec started. Where the sandbox doesn't tell of its end within Timeouts.Control, the wait for it
// is given up, and WaitExec returns; the error is nil then, too, for nothing else can be done about it. ErrNotFound when
// WaitExec has returned its status.
func (c *Client) EndExec(ctx context.Context, id string, insidePid int) error {
	e, err := c.executionOf(execKey{id, insidePid})
	if err != nil {
		return err
	}
	err = c.Kill(ctx, id, KillOptions{Signal: syscall.SIGKILL, Pid: insidePid})
	if errors.Is(err, ErrNotRunning) || errors.Is(err, ErrNotFound) { // it has ended, or all has
		err = nil
	}
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeouts.control(), ErrDeadline)
	defer cancel()
	select {
	case <-e.done:
	case <-ctx.Done():
		e.kill(context.Cause(ctx))
		<-e.done
	}
	return err
}

// exitStatus separates a status of the process from a failure of runsc, which
// alone writes to the log.
func exitStatus(err error) (int, error) {
	var e *Error
	switch {
	case err == nil:
		return 0, nil
	case errors.As(err, &e) && e.Code != 0 && e.Log == "":
		return e.Code, nil
	}
	return 0, err
}

// Output runs a process to its end, copying its standard output to out, and
// returns its exit status. IO.Stdout and ConsoleSocket are not used.
func (c *Client) Output(ctx context.Context, id string, o ExecOptions, out io.Writer) (int, error) {
	stdout, err := memfile("exec")
	if err != nil {
		return 0, err
	}
	defer stdout.Close()
	o.IO.Stdout, o.ConsoleSocket = stdout, ""
	op, err := c.execCall(id, o)
	if err != nil {
		return 0, err
	}
	defer op.release()
	op.timeout = c.Timeouts.output()
	_, runErr := c.run(ctx, op.call)
	status, err := exitStatus(runErr)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(out, io.NewSectionReader(stdout, 0, maxOutput))
	return status, err
}

// execution's command line, with the files that must stay open while it starts.
type execCall struct {
	call
	owned []*os.File
}

func (e *execCall) release() {
	for _, f := range e.owned {
		_ = f.Close()
	}
}

// pass hands a descriptor to runsc and names it as a path there.
func (e *execCall) pass(f *os.File) int {
	e.extra = append(e.extra, f)
	return 2 + len(e.extra)
}

// reportPid makes runsc write the inside pid to f, a pipe.
func (e *execCall) reportPid(f *os.File) {
	fd := e.pass(f)
	e.args = append(e.args, fmt.Sprintf("--internal-pid-file=/proc/self/fd/%d", fd))
}

func (c *Client) execCall(id string, o ExecOptions) (*execCall, error) {
	op := &execCall{call: call{command: "exec", id: id, io: &o.IO}}
	process, err := processFile(o.Process)
	if err != nil {
		return nil, fmt.Errorf("exec in %s: %w", id, err)
	}
	op.owned = append(op.owned, process)
	op.args = append(op.args, fmt.Sprintf("--process=/proc/self/fd/%d", op.pass(process)))
	if o.Executable != nil {
		op.args = append(op.args, fmt.Sprintf("--exec-fd=%d", op.pass(o.Executable)))
	}
	if o.ConsoleSocket != "" {
		if err := op.terminal(o.ConsoleSocket, o.Process.ConsoleSize); err != nil {
			op.release()
			return nil, fmt.Errorf("exec in %s: %w", id, err)
		}
	}
	return op, nil
}

// terminal makes a new pty the process's streams and controlling terminal, and
// sends its master to the socket.
func (e *execCall) terminal(socket string, size *specs.Box) error {
	tty, err := newTerminal(socket, size)
	if err != nil {
		return err
	}
	e.owned = append(e.owned, tty)
	e.io = &IO{Stdin: tty, Stdout: tty, Stderr: tty}
	e.attr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	return nil
}

// processFile gives the process as a file without a name.
func processFile(p *specs.Process) (*os.File, error) {
	data, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	f, err := memfile("process.json")
	if err != nil {
		return nil, err
	}
	if _, err := f.Write(data); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
