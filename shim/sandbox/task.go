package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// Process is what containerd may know of a container or an exec.
type Process struct {
	ID       string
	Bundle   string
	Pid      int
	State    lifecycle.Container
	Terminal bool
	Stdio    stdio.Config
	Exit     Exit
}

// Process describes a container, or one of its execs. A sleeping one is running.
func (w *Workload) Process(id, exec string) (Process, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	c, err := w.container(id)
	if err != nil {
		return Process{}, fmt.Errorf("container %s: %w", id, err)
	}
	p := Process{ID: id, Bundle: c.Bundle, Pid: w.holder.Pid, State: c.state, Terminal: c.Terminal, Stdio: c.Stdio, Exit: c.exit}
	if exec == "" {
		return p, nil
	}
	e := c.execs[exec]
	if e == nil {
		return Process{}, fmt.Errorf("exec %s: %w", exec, ErrNotFound)
	}
	p.Terminal, p.Stdio, p.State, p.Exit = e.Terminal, e.Stdio, lifecycle.Created, Exit{}
	switch {
	case e.exit != nil:
		p.State, p.Exit = lifecycle.Stopped, *e.exit
	case e.started:
		p.State = lifecycle.Running
	}
	return p, nil
}

// Pids are the workload's processes on the host: never none, since the holder is one.
func (w *Workload) Pids() []int {
	w.mu.Lock()
	defer w.mu.Unlock()
	pids := []int{w.holder.Pid}
	if w.sandboxPid != 0 {
		pids = append(pids, w.sandboxPid)
	}
	return pids
}

// Wait returns when the container or exec has ended, through any number of sleeps.
func (w *Workload) Wait(ctx context.Context, id, exec string) (Exit, error) {
	w.mu.Lock()
	c, err := w.container(id)
	w.mu.Unlock()
	if err != nil {
		return Exit{}, fmt.Errorf("container %s: %w", id, err)
	}
	ended, exit := c.ended, func() Exit { return c.exit }
	if exec != "" {
		_, e, err := w.exec(id, exec)
		if err != nil {
			return Exit{}, err
		}
		ended, exit = e.ended, func() Exit { return *e.exit }
	}
	select {
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	case <-ended:
		w.mu.Lock()
		defer w.mu.Unlock()
		return exit(), nil
	}
}

// Resize sets the size of a terminal, in characters.
func (w *Workload) Resize(id, exec string, width, height uint16) error {
	relay, err := w.relay(id, exec)
	if err != nil || relay == nil {
		return err
	}
	return relay.Resize(width, height)
}

// CloseStdin ends the standard input. A sleeping container is woken for it, as for any input.
func (w *Workload) CloseStdin(id, exec string) error {
	relay, err := w.relay(id, exec)
	if err != nil || relay == nil {
		return err
	}
	err = relay.CloseStdin()
	if err == nil && exec == "" && relay.HasInput() {
		w.inputCame()
	}
	return err
}

func (w *Workload) relay(id, exec string) (*stdio.Relay, error) {
	if exec != "" {
		_, e, err := w.exec(id, exec)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		return e.relay, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c, err := w.container(id)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", id, err)
	}
	return c.relay, nil
}

// Update sets a container's limits. The cgroup lives through sleep, so it takes them at any time.
func (w *Workload) Update(id string, resources *specs.LinuxResources) error {
	w.mu.Lock()
	c, err := w.container(id)
	w.mu.Unlock()
	switch {
	case err != nil:
		return fmt.Errorf("container %s: %w", id, err)
	case c.member != nil:
		return c.member.group.Update(resources)
	}
	return w.group.Update(resources)
}

// Metrics are the cgroup's, of the type that the host's cgroup version asks for; a member's its part of them. They never wake.
func (w *Workload) Metrics(id string) (typeurl.Any, error) {
	w.mu.Lock()
	c, err := w.container(id)
	w.mu.Unlock()
	switch {
	case err != nil:
		return nil, fmt.Errorf("container %s: %w", id, err)
	case c.member != nil:
		return w.memberMetrics(c)
	}
	return w.group.Metrics()
}

// Delete removes a container that has ended or never started, and all that was made for it.
func (w *Workload) Delete(ctx context.Context, id string) (Exit, error) {
	w.mu.Lock()
	c, err := w.container(id)
	if err != nil {
		w.mu.Unlock()
		return Exit{}, fmt.Errorf("container %s: %w", id, err)
	}
	created := c.state == lifecycle.Created
	_, err = c.state.Next(lifecycle.Delete)
	w.mu.Unlock()
	if err != nil {
		return Exit{}, err
	}
	if created {
		w.containerEnded(killedStatus, w.opts.Now())
	}
	select {
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	case <-c.ended:
	}
	if err := c.letGo(); err != nil {
		w.opts.Log.Debug("output", "container", c.ID, "error", err)
	}
	err = w.dismantle(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	c.state, _ = c.state.Next(lifecycle.Delete)
	return c.exit, err
}

// dismantle takes down what Create made, in the opposite order.
func (w *Workload) dismantle(ctx context.Context) error {
	w.background.Wait()
	errs := []error{w.holder.kill(), w.podNS.Close()}
	if w.link != nil {
		errs = append(errs, w.link.Close())
	}
	errs = append(errs, w.runStopHooks(ctx))
	grouped := make(chan error, 1)
	go func() { grouped <- w.group.Delete() }() // it waits for the holder's end
	errs = append(errs,
		network.RemoveNamespace(w.innerPath()),
		mount.UnmountRecursive(w.places.rootfs(), unix.MNT_DETACH),
		handover.RemoveRecord(w.config.RunDir, w.opts.Namespace, w.opts.ID),
		w.local.Close(),
		<-grouped,
	)
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if err := w.runsc.RemoveRoot(); err != nil {
		return err
	}
	return os.Remove(w.places.state()) // nothing is left for `delete`, which containerd calls in any case
}
