// Package reap waits for the processes below a shim: the commands it runs, and the sandboxes it adopts.
//
// A shim is a subreaper: a sandbox outlives the runsc that made it and becomes the shim's child. One loop reaps every
// child and tells all who wait, so exec.Cmd.Wait alone would lose its process to that loop.
package reap

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"
	runc "github.com/containerd/go-runc"

	"github.com/hibernate-runtime/hibernate/runsc"
)

// remembered is how many exits are kept for a Watch that comes after its process is gone.
const remembered = 64

// Exit is the end of a process. Status is its exit code, or 128 and the signal's number.
type Exit struct {
	Pid    int
	Status int
	At     time.Time
}

// Reaper tells when processes end. Its zero value is not usable; see New.
type Reaper struct {
	monitor *reaper.Monitor
	exits   chan runc.Exit

	mu      sync.Mutex // guards the fields below
	watched map[int]chan Exit
	recent  []Exit
}

// New subscribes to monitor. Run must be called for Watch to tell anything.
func New(monitor *reaper.Monitor) *Reaper {
	return &Reaper{monitor: monitor, exits: monitor.Subscribe(), watched: make(map[int]chan Exit)}
}

// Run passes exits on until ctx ends.
func (r *Reaper) Run(ctx context.Context) {
	defer r.monitor.Unsubscribe(r.exits)
	for {
		select {
		case <-ctx.Done():
			return
		case e := <-r.exits:
			r.record(Exit{Pid: e.Pid, Status: e.Status, At: e.Timestamp})
		}
	}
}

func (r *Reaper) record(e Exit) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, ok := r.watched[e.Pid]; ok {
		delete(r.watched, e.Pid)
		c <- e
		return
	}
	if len(r.recent) == remembered {
		r.recent = r.recent[1:]
	}
	r.recent = append(r.recent, e)
}

// Watch returns a channel that gets the exit of the child pid, once, also when it ended a moment ago. Only one Watch
// of a process is served.
func (r *Reaper) Watch(pid int) <-chan Exit {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := make(chan Exit, 1)
	for i, e := range r.recent {
		if e.Pid == pid {
			r.recent = append(r.recent[:i], r.recent[i+1:]...)
			c <- e
			return c
		}
	}
	r.watched[pid] = c
	return c
}

// Runner returns a runsc.Runner that learns of the end of its commands from the reaper.
func (r *Reaper) Runner() runsc.Runner { return runner{monitor: r.monitor} }

// RunnerIn is Runner for commands that are born in a control group, with all that they start.
func (r *Reaper) RunnerIn(g Group) runsc.Runner { return runner{monitor: r.monitor, group: g} }

// Group is a control group that processes can be born in.
type Group interface {
	// Spawn calls start, which starts cmd in its own goroutine.
	Spawn(cmd *exec.Cmd, start func() error) error
}

type runner struct {
	monitor *reaper.Monitor
	group   Group // nil: the shim's own
}

// Run starts cmd and waits for it. A command that ctx ends is killed; the error is then ctx's cause.
func (r runner) Run(ctx context.Context, cmd *exec.Cmd) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	exits, err := r.start(cmd)
	if err != nil {
		return err
	}
	// The process's end is reaped by another wait than its own, which would otherwise keep its descriptor until the next
	// garbage collection.
	defer func() { _ = cmd.Process.Release() }()
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	status, err := r.monitor.Wait(cmd, exits)
	killed := !stop()
	switch {
	case errors.Is(err, reaper.ErrNoSuchProcess):
		return fmt.Errorf("%s: %w", cmd.Path, err)
	case status != 0 && killed:
		return context.Cause(ctx)
	case status != 0:
		return &runsc.ExitError{Code: status}
	}
	return nil
}

func (r runner) start(cmd *exec.Cmd) (exits chan runc.Exit, err error) {
	if r.group == nil {
		return r.monitor.Start(cmd)
	}
	err = r.group.Spawn(cmd, func() (err error) {
		exits, err = r.monitor.Start(cmd)
		return err
	})
	return exits, err
}
