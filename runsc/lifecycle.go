package runsc

import (
	"context"
	"errors"
	"strconv"
	"syscall"
)

// CreateOptions are the arguments of Create.
type CreateOptions struct {
	Bundle        string // absolute path of the directory with config.json
	PidFile       string // receives the pid of the sandbox process; "" for none
	ConsoleSocket string // with terminal: true, a unix socket that gets the pty
	IO            IO     // the init's streams, for the sandbox's whole life
	// Runner, when set, runs this call instead of the client's: what it starts,
	// the sandbox too, is born where the Runner puts it.
	Runner Runner
}

// Create boots a sandbox (or adds a container to one) without starting the
// container's init. ErrExists when the id is taken, ErrBundle when there is no
// readable spec. After ErrDeadline parts of a sandbox may remain: Delete it.
func (c *Client) Create(ctx context.Context, id string, o CreateOptions) error {
	args := []string{"--bundle=" + o.Bundle}
	args = appendFlag(args, "--pid-file=", o.PidFile)
	args = appendFlag(args, "--console-socket=", o.ConsoleSocket)
	_, err := c.run(ctx, call{command: "create", id: id, args: args, io: &o.IO, runner: o.Runner, timeout: c.Timeouts.create()})
	return err
}

// Start runs the init of a created container.
func (c *Client) Start(ctx context.Context, id string) error {
	_, err := c.run(ctx, call{command: "start", id: id, timeout: c.Timeouts.start()})
	return err
}

// JoinOptions are what a container that joins a sandbox is given: its streams, which the sandbox's first one gets with Create, and
// where the process that serves its files is born.
type JoinOptions struct {
	IO     IO
	Runner Runner // as of CreateOptions
}

// StartJoined runs the init of a created container that is not its sandbox's first one.
func (c *Client) StartJoined(ctx context.Context, id string, o JoinOptions) error {
	_, err := c.run(ctx, call{command: "start", id: id, io: &o.IO, runner: o.Runner, timeout: c.Timeouts.start()})
	return err
}

// RestoreJoined is Restore of a created container that is not its sandbox's first one, which is restored before it. Nothing runs
// before the last of those that the image has; its call tells what is wrong with the image.
func (c *Client) RestoreJoined(ctx context.Context, id, imagePath string, o JoinOptions) error {
	args := []string{"--detach", "--image-path=" + imagePath}
	_, err := c.run(ctx, call{command: "restore", id: id, args: args, io: &o.IO, runner: o.Runner, timeout: c.Timeouts.restore()})
	return err
}

// RestoreOptions are the arguments of Restore.
type RestoreOptions struct {
	Bundle     string
	ImagePath  string
	Background bool // return before the memory is loaded; a later failure kills the sandbox
	// Sidecar serves the image, whose directory is then a Loading's. With it memory comes in the order it is asked for.
	Sidecar *Sidecar
	Runner  Runner // as of CreateOptions: the sidecar is born where it says
	Direct  bool   // O_DIRECT: only for a single restore from a cold cache
}

// Restore loads an image into a created container, which then runs. After any
// failure the container is of no use and must be deleted with force. ErrImage,
// ErrVersion and ErrSpec say why an image was refused.
func (c *Client) Restore(ctx context.Context, id string, o RestoreOptions) error {
	args := []string{"--detach", "--image-path=" + o.ImagePath}
	args = appendFlag(args, "--bundle=", o.Bundle)
	if o.Background {
		args = append(args, "--background")
	}
	if o.Direct {
		args = append(args, "--direct")
	}
	op := call{command: "restore", id: id, args: args, runner: o.Runner, timeout: c.Timeouts.restore()}
	if o.Sidecar != nil {
		op.env = o.Sidecar.env()
	}
	_, err := c.run(ctx, op)
	return err
}

// CheckpointOptions are the arguments of Checkpoint.
type CheckpointOptions struct {
	ImagePath        string // a directory without an image in it
	ExcludeZeroPages bool   // costs a scan of the memory
}

// Checkpoint writes an image and leaves the sandbox as it was, whatever
// happens: the caller pauses it before, and deletes or resumes it after. The
// image is not synced and not verified.
func (c *Client) Checkpoint(ctx context.Context, id string, o CheckpointOptions) error {
	args := []string{"--leave-running", "--image-path=" + o.ImagePath}
	if o.ExcludeZeroPages {
		args = append(args, "--exclude-committed-zero-pages")
	}
	_, err := c.run(ctx, call{command: "checkpoint", id: id, args: args, timeout: c.Timeouts.checkpoint()})
	return err
}

// Pause stops all tasks of the sandbox. ErrNotRunning when it is paused already.
func (c *Client) Pause(ctx context.Context, id string) error {
	_, err := c.run(ctx, call{command: "pause", id: id, timeout: c.Timeouts.control()})
	return err
}

// Resume undoes Pause. It must name the container that Pause named.
func (c *Client) Resume(ctx context.Context, id string) error {
	_, err := c.run(ctx, call{command: "resume", id: id, timeout: c.Timeouts.control()})
	return err
}

// KillOptions say what to signal: the init, all processes, or one of them.
type KillOptions struct {
	Signal syscall.Signal
	All    bool
	Pid    int // as seen inside; 0 for the init
}

// Kill delivers a signal. ErrNotRunning when its target has ended, or the
// sandbox is paused. A sandbox that ends while it answers, since the signal
// ended its init, counts as a delivery.
func (c *Client) Kill(ctx context.Context, id string, o KillOptions) error {
	var args []string
	if o.All {
		args = append(args, "--all")
	}
	if o.Pid != 0 {
		args = append(args, "--pid="+strconv.Itoa(o.Pid))
	}
	signal := []string{strconv.Itoa(int(o.Signal))}
	_, err := c.run(ctx, call{command: "kill", id: id, args: args, tail: signal, timeout: c.Timeouts.control()})
	if errors.Is(err, ErrCrashed) {
		return nil
	}
	return err
}

// Delete removes a container, and its sandbox with the sandbox's first one.
// With force a running or paused one is killed, and one that does not exist is
// no error. Never force a container other than the first in a paused sandbox:
// that hangs until the deadline. A container whose filestore is gone, as when an
// engine has removed its root file system meanwhile, is none either: runsc
// complains after it has done all else, and knows nothing of it any more.
func (c *Client) Delete(ctx context.Context, id string, force bool) error {
	var args []string
	if force {
		args = append(args, "--force")
	}
	_, err := c.run(ctx, call{command: "delete", id: id, args: args, timeout: c.Timeouts.delete()})
	if force && errors.Is(err, ErrFilestore) {
		_, err = c.run(ctx, call{command: "delete", id: id, args: args, timeout: c.Timeouts.delete()})
	}
	if force && errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

func appendFlag(args []string, flag, value string) []string {
	if value == "" {
		return args
	}
	return append(args, flag+value)
}
