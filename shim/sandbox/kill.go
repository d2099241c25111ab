package sandbox

import (
	"context"
	"errors"
	"fmt"
	"syscall"

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
	case signal == syscall.SIGKILL:
		return w.killNow(ctx)
	}
	return w.signal(ctx, signal, all)
}

// killNow ends the container whatever it is doing.
func (w *Workload) killNow(ctx context.Context) error {
	for {
		w.mu.Lock()
		state, t, started := w.state, w.transition, w.root().state != lifecycle.Created
		w.mu.Unlock()
		switch {
		case t != nil:
			t.cancel(ErrKilled)
			if _, err := t.result(ctx); ctx.Err() != nil {
				return err
			}
			if t.record.GetKind() == "wake" && t.err == nil {
				continue // it woke before the kill came through
			}
			return w.endKilled(ctx)
		case state == lifecycle.Ended:
			return nil
		case state == lifecycle.Awake && started:
			err := w.runsc.Kill(ctx, w.opts.ID, runsc.KillOptions{Signal: syscall.SIGKILL, All: true})
			if err == nil || errors.Is(err, runsc.ErrNotRunning) && w.ended() {
				return nil
			}
			w.opts.Log.Warn("kill", "error", err) // a stuck or paused sandbox is ended from outside
		}
		return w.endKilled(ctx)
	}
}

func (w *Workload) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sandboxPid == 0 || w.state == lifecycle.Ended
}

// endKilled ends a container that no process of its own can end: it sleeps, or its sandbox is stuck.
func (w *Workload) endKilled(ctx context.Context) error {
	if err := w.freeSandbox(ctx); err != nil {
		w.opts.Log.Error("kill", "error", err)
	}
	w.containerEnded(killedStatus, w.opts.Now())
	return nil
}

// signal delivers a signal that a process can handle, or ends a sleeper without waking it where policy says so.
func (w *Workload) signal(ctx context.Context, signal syscall.Signal, all bool) error {
	w.mu.Lock()
	asleep := w.state == lifecycle.Asleep || w.state == lifecycle.Blocked
	w.mu.Unlock()
	if asleep && w.config.OnStop == config.StopExit && isStop(signal) {
		w.containerEnded(128+uint32(signal), w.opts.Now())
		return nil
	}
	release, err := w.hold(ctx, "signal")
	if err != nil {
		return fmt.Errorf("deliver signal %d: %w", signal, err)
	}
	defer release()
	err = w.runsc.Kill(ctx, w.opts.ID, runsc.KillOptions{Signal: signal, All: all})
	if errors.Is(err, runsc.ErrNotRunning) || errors.Is(err, runsc.ErrNotFound) {
		return fmt.Errorf("deliver signal %d: %w: %w", signal, ErrNotFound, err)
	}
	return err
}

// isStop says whether a signal asks a program to stop.
func isStop(s syscall.Signal) bool {
	return s == syscall.SIGTERM || s == syscall.SIGINT || s == syscall.SIGQUIT
}
