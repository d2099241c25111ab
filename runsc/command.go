package runsc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// IO holds the standard streams of a container or an exec; nil means /dev/null.
// The files are the process's own: the client never reads or closes them.
type IO struct{ Stdin, Stdout, Stderr *os.File }

// call is one run of runsc: everything that differs between subcommands.
type call struct {
	command string   // the subcommand
	id      string   // "" for subcommands without a container
	args    []string // between the subcommand and the id
	tail    []string // after the id

	timeout time.Duration // 0: none but the caller's context
	io      *IO           // nil: output is runsc's own and captured
	extra   []*os.File    // descriptors 3, 4, …
	attr    *syscall.SysProcAttr
	runner  Runner   // nil: the client's
	env     []string // nil: this process's
}

// run executes one call and returns what runsc wrote to its standard output
// (nothing when the call carries a container's streams).
func (c *Client) run(ctx context.Context, op call) ([]byte, error) {
	if op.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, op.timeout, ErrDeadline)
		defer cancel()
	}
	log, err := c.logFile(op.command)
	if err != nil {
		return nil, &Error{Command: op.command, ID: op.id, Message: err.Error(), Kind: err}
	}
	out, err := openOutput(op)
	if err != nil {
		return nil, &Error{Command: op.command, ID: op.id, Message: err.Error(), Kind: err}
	}
	defer out.close()
	runErr := c.runner(op).Run(ctx, c.build(ctx, op, log, out))
	if runErr == nil {
		_ = os.Remove(log)
		return out.stdout(), nil
	}
	return nil, failure(ctx, op, runErr, log, out.stderr())
}

// build is the one place that makes a command line of runsc.
func (c *Client) build(ctx context.Context, op call, log string, out *output) *exec.Cmd {
	args := []string{"--root=" + c.Root, "--log=" + log, "--log-format=json"}
	args = append(args, c.Flags...)
	args = append(args, op.command)
	args = append(args, op.args...)
	if op.id != "" {
		args = append(args, op.id)
	}
	args = append(args, op.tail...)
	cmd := exec.CommandContext(ctx, c.Binary(), args...)
	cmd.WaitDelay = 3 * time.Second // on a busy machine the sandbox is slow to let go of the streams that it was given
	cmd.ExtraFiles = op.extra
	cmd.SysProcAttr = op.attr
	cmd.Env = op.env
	setStreams(cmd, op.io, out)
	return cmd
}

// setStreams avoids storing a nil *os.File in an interface, which exec.Cmd
// would take for a stream.
func setStreams(cmd *exec.Cmd, io *IO, out *output) {
	if io == nil {
		cmd.Stdout, cmd.Stderr = out.out, out.err
		return
	}
	if io.Stdin != nil {
		cmd.Stdin = io.Stdin
	}
	if io.Stdout != nil {
		cmd.Stdout = io.Stdout
	}
	if io.Stderr != nil {
		cmd.Stderr = io.Stderr
	}
}

func (c *Client) runner(op call) Runner {
	for _, r := range []Runner{op.runner, c.Runner} {
		if r != nil {
			return r
		}
	}
	return ExecRunner{}
}

// logFile makes the empty file that runsc appends its error to.
func (c *Client) logFile(command string) (string, error) {
	f, err := os.CreateTemp(c.LogDir, "runsc-"+command+"-*.log")
	if err != nil {
		return "", fmt.Errorf("runsc log file: %w", err)
	}
	return f.Name(), f.Close()
}

// output holds runsc's own standard streams in anonymous memory files: no pipe
// that a child could keep open, no name to clean up.
type output struct{ out, err *os.File }

func openOutput(op call) (*output, error) {
	if op.io != nil {
		return &output{}, nil
	}
	out, err := memfile("stdout")
	if err != nil {
		return nil, err
	}
	stderr, err := memfile("stderr")
	if err != nil {
		return nil, errors.Join(err, out.Close())
	}
	return &output{out: out, err: stderr}, nil
}

func memfile(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

func (o *output) stdout() []byte { return content(o.out) }
func (o *output) stderr() []byte { return content(o.err) }

// maxOutput bounds what is read back of one stream.
const maxOutput = 16 << 20

func content(f *os.File) []byte {
	if f == nil {
		return nil
	}
	data, err := io.ReadAll(io.NewSectionReader(f, 0, maxOutput))
	if err != nil {
		return nil
	}
	return data
}

func (o *output) close() {
	if o.out != nil {
		_ = o.out.Close()
		_ = o.err.Close()
	}
}
