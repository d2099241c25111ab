package sandbox

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// Kill signals the container, or one of its execs. SIGKILL never wakes, and cuts through a transition; other signals to
// a sleeping container follow on-stop.
func (w *Workload) Kill(ctx context.Context, id, exec string, signal syscall.Signal, all bool) error {
	w.mu.Lock()
	c, err := w.container(id)
	if err == nil && exec == "" && c.state == lifecycle.Stopped {
		err = fmt.Errorf("container %s has ended: %w", id, ErrNotFound)
	}
	w.mu.Unlock()
	switch {
	case err != nil:
		return err
	case exec != "":
		return w.killExec(ctx, c, exec, signal)
	case signal == 0: // asks whether it is there
		return nil
	case signal == syscall.SIGKILL && c.member != nil:
		return w.killMember(ctx, c)
	case signal == syscall.SIGKILL:
		return w.killNow(ctx)
	}
	return w.signal(ctx, c, signal, all)
}

// killNow ends the container whatever it is doing, and returns when it has ended. What it began goes on when ctx ends:
// a transition that was cut through has nothing to go back to.
func (w *Workload) killNow(ctx context.Context) error {
	w.mu.Lock()
	c, first := w.root(), !w.killed
	w.killed = true // no transition begins from here on
	w.mu.Unlock()
	if first {
		w.background.Go(w.endByKill)
	}
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *Workload) endByKill() {
	w.mu.Lock()
	t := w.transition
	w.mu.Unlock()
	if t != nil {
		t.cancel(ErrKilled)
		<-t.done
	}
	w.mu.Lock()
	runs := w.state == lifecycle.Awake && w.root().state == lifecycle.Running && (t == nil || t.err == nil)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if runs && w.killInit(ctx) {
		return
	}
	if err := w.freeSandbox(ctx); err != nil {
		w.opts.Log.Error("kill", "error", err)
	}
	w.mu.Lock()
	keep := w.stopping && w.state == lifecycle.Asleep // it was put to sleep for its stop, just in time
	w.mu.Unlock()
	w.end(killedStatus, w.opts.Now(), keep)
}

// killGrace is how long a sandbox may take to end by a SIGKILL of all that is in it.
const killGrace = 3 * time.Second

// killInit ends the container's processes from inside; false when the sandbox is stuck or paused, and must be ended from
// outside.
func (w *Workload) killInit(ctx context.Context) bool {
	err := w.runsc.Kill(ctx, w.opts.ID, runsc.KillOptions{Signal: syscall.SIGKILL, All: true})
	if err != nil && !errors.Is(err, runsc.ErrNotRunning) {
		w.opts.Log.Warn("kill", "error", err)
		return false
	}
	select {
	case <-w.root().ended:
		return true
	case <-time.After(killGrace):
		return false
	}
}

// signal delivers a signal that a process can handle, or ends a sleeper without waking it where policy says so.
func (w *Workload) signal(ctx context.Context, c *Container, signal syscall.Signal, all bool) error {
	w.mu.Lock()
	asleep := w.state == lifecycle.Asleep || w.state == lifecycle.Blocked
	outside := c.member != nil && !c.member.inside
	w.mu.Unlock()
	switch {
	case outside && isStop(signal), asleep && w.config.OnStop == config.StopExit && isStop(signal):
		w.ended(c, 128+uint32(signal))
		return nil
	case outside:
		return fmt.Errorf("container %s was not started: %w", c.ID, ErrPrecondition)
	}
	how := keptSignal{c, runsc.KillOptions{Signal: signal, All: all}}
	if w.stopsAsleep(c, signal) {
		return w.stop(ctx, how)
	}
	return w.deliver(ctx, how)
}

// ended ends a container that runs nothing, or sleeps.
func (w *Workload) ended(c *Container, status uint32) {
	if c.member != nil {
		w.memberEnded(c, status, w.opts.Now())
		return
	}
	w.containerEnded(status, w.opts.Now())
}

// keptSignal is a signal to a container.
type keptSignal struct {
	to *Container
	runsc.KillOptions
}

// deliver hands a signal to the container's processes. It wakes a sleeper.
func (w *Workload) deliver(ctx context.Context, how keptSignal) error {
	signal := how.Signal
	if w.keepSignal(how) {
		return nil
	}
	release, err := w.hold(ctx, "signal")
	if err != nil {
		return fmt.Errorf("deliver signal %d: %w", signal, err)
	}
	defer release()
	if w.keepSignal(how) { // paused meanwhile
		return nil
	}
	err = w.runsc.Kill(ctx, how.to.ID, how.KillOptions)
	if errors.Is(err, runsc.ErrNotRunning) || errors.Is(err, runsc.ErrNotFound) {
		return fmt.Errorf("deliver signal %d: %w: %w", signal, ErrNotFound, err)
	}
	return err
}

// keepSignal keeps a signal to a paused container until it is resumed, as the kernel does for frozen processes.
func (w *Workload) keepSignal(how keptSignal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.anyPaused() {
		return false
	}
	w.signals = append(w.signals, how)
	return true
}

// deliverKept delivers what came during a pause.
func (w *Workload) deliverKept(ctx context.Context) error {
	w.mu.Lock()
	kept := w.signals
	w.signals = nil
	w.mu.Unlock()
	for _, how := range kept {
		err := w.runsc.Kill(ctx, how.to.ID, how.KillOptions)
		switch {
		case errors.Is(err, runsc.ErrNotRunning), errors.Is(err, runsc.ErrNotFound): // an earlier one has ended it
			continue
		case err != nil:
			return fmt.Errorf("deliver signal %d, kept during the pause: %w", how.Signal, err)
		}
	}
	return nil
}

// isStop says whether a signal asks a program to stop.
func isStop(s syscall.Signal) bool {
	return s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGQUIT
}
