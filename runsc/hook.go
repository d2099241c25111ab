package runsc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// maxSaid bounds what is read of a hook's output.
const maxSaid = 2 << 10

// Hook runs a program inside a container to its end, by the hook role of hibernate-helper, and returns its exit status and the
// end of what it said, 2 KiB at most. When ctx ends, the program and all that it has started are killed, and the error is ctx's
// cause; so is all that it has left when it ends by itself, and when this process does. Process is whose place it takes: its user,
// environment and directory; Args are the program's.
func (c *Client) Hook(ctx context.Context, id string, helper *os.File, process specs.Process) (status int, said string, err error) {
	stay, ours, err := os.Pipe() // its end is what ends the hook
	if err != nil {
		return 0, "", fmt.Errorf("hook in %s: %w", id, err)
	}
	defer ours.Close()
	out, theirs, err := os.Pipe()
	if err != nil {
		return 0, "", fmt.Errorf("hook in %s: %w", id, errors.Join(err, stay.Close()))
	}
	defer out.Close()
	process.Args = append([]string{"hibernate-helper", "hook"}, process.Args...)
	process.Terminal, process.ConsoleSize = false, nil
	pid, err := c.Exec(ctx, id, ExecOptions{Process: &process, Executable: helper, IO: IO{Stdin: stay, Stdout: theirs}})
	err = errors.Join(err, stay.Close(), theirs.Close())
	if err != nil {
		return 0, "", err
	}
	text := make(chan string, 1)
	go func() { text <- readSaid(out) }()
	status, err = c.WaitExec(ctx, id, pid)
	if ctx.Err() == nil {
		return status, <-text, err
	}
	return 0, c.endHook(ctx, id, pid, ours, text), context.Cause(ctx)
}

// endHook ends a hook whose time is over, and returns what it said.
func (c *Client) endHook(ctx context.Context, id string, pid int, ours *os.File, text <-chan string) (said string) {
	_ = ours.Close()
	late, cancel := context.WithTimeoutCause(context.WithoutCancel(ctx), hookGrace, ErrDeadline)
	defer cancel()
	if _, err := c.WaitExec(late, id, pid); late.Err() != nil || err == nil {
		_ = c.EndExec(context.WithoutCancel(ctx), id, pid) // nothing when it has ended
	}
	select {
	case said = <-text:
	case <-time.After(hookGrace): // something inside has kept its end
	}
	return said
}

// hookGrace is how long a hook's processes may take to be killed from inside.
const hookGrace = 3 * time.Second

// readSaid reads what the helper says at its end.
func readSaid(out io.Reader) string {
	data, err := io.ReadAll(io.LimitReader(out, maxSaid))
	if err != nil && len(data) == 0 {
		return ""
	}
	return string(data)
}
