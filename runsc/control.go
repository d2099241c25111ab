package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A sandbox answers on a socket in runsc's root: one JSON object for each call (gVisor's pkg/urpc, runsc/boot/controller.go). What is asked
// there directly, and not by a run of runsc, is what lasts, or is asked all the time.

// ask makes one call of a sandbox's control server. It has no deadline but ctx.
func (c *Client) ask(ctx context.Context, sandbox, method string, arg, result any) error {
	failed := func(kind, err error) error {
		return &Error{Command: method, ID: sandbox, Message: err.Error(), Kind: kind}
	}
	conn, err := dialSocket(ctx, filepath.Join(c.Root, "runsc-"+sandbox+".sock"))
	if err != nil {
		return failed(ErrNotRunning, err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	call := struct {
		Method string `json:"method"`
		Arg    any    `json:"arg"`
	}{method, arg}
	answer := struct {
		Success bool   `json:"success"`
		Err     string `json:"err"`
		Result  any    `json:"result"`
	}{Result: result}
	if err = json.NewEncoder(conn).Encode(call); err == nil {
		err = json.NewDecoder(conn).Decode(&answer)
	}
	switch {
	case ctx.Err() != nil:
		return failed(context.Cause(ctx), context.Cause(ctx))
	case err != nil:
		return failed(ErrCrashed, err)
	case !answer.Success:
		return failed(kindOfAnswer(answer.Err), errors.New(answer.Err))
	}
	return nil
}

// dialSocket connects to a unix socket whose path may be longer than an address can be.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d", fd))
}

func kindOfAnswer(text string) error {
	switch {
	case strings.Contains(text, "could not find init process"), strings.Contains(text, "not found"), strings.Contains(text, "does not exist"):
		return ErrNotFound
	case strings.Contains(text, "not started"):
		return ErrNotRunning
	}
	return nil
}

// Wait waits for the end of the init of a container that was started or restored, and gives its exit status, 128 plus the signal's number when a
// signal ended it. It costs a socket, and no process. It has no deadline but ctx. ErrNotFound when the sandbox knows no such process
// any more; ErrCrashed, ErrNotRunning when the sandbox itself went away.
func (c *Client) Wait(ctx context.Context, sandbox, id string) (int, error) {
	var status uint32
	if err := c.ask(ctx, sandbox, "containerManager.Wait", id, &status); err != nil {
		return 0, fmt.Errorf("wait for %s: %w", id, err)
	}
	if ws := unix.WaitStatus(status); ws.Signaled() {
		return 128 + int(ws.Signal()), nil
	}
	return unix.WaitStatus(status).ExitStatus(), nil
}

// Usage is the processor time that each container of a sandbox has used, in nanoseconds by the sandbox's own accounts, which begin anew
// with each sandbox.
func (c *Client) Usage(ctx context.Context, sandbox string) (map[string]uint64, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeouts.control(), ErrDeadline)
	defer cancel()
	var out struct {
		ContainerUsage map[string]uint64 `json:"containerUsage"`
	}
	if err := c.ask(ctx, sandbox, "containerManager.Event", sandbox, &out); err != nil {
		return nil, err
	}
	return out.ContainerUsage, nil
}
