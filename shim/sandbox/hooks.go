package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
)

// hookTimeout bounds a hook that names no time-out of its own.
const hookTimeout = 30 * time.Second

// runCreateHooks runs what the specification asks for when the namespaces exist. runsc would run the hooks at each
// restore and delete, and so take the network down with each sleep: it sees none, we run them once.
func (w *Workload) runCreateHooks(ctx context.Context, _ CreateRequest, u *undo.Stack) error {
	if w.hooks == nil {
		return nil
	}
	if n := len(w.hooks.CreateContainer) + len(w.hooks.StartContainer); n > 0 {
		w.opts.Log.Warn("hooks that run inside the container's namespaces are not supported, and passed over", "hooks", n)
	}
	if err := w.holder.await(); err != nil {
		return err
	}
	u.Push("poststop hooks", func(ctx context.Context) error { return w.ending().run(ctx, w.opts.Runner) })
	//lint:ignore SA1019 prestart is deprecated, and still what older engines send
	hooks := append(append([]specs.Hook{}, w.hooks.Prestart...), w.hooks.CreateRuntime...)
	return w.runHooks(ctx, hooks, specs.StateCreated)
}

func (w *Workload) runHooks(ctx context.Context, hooks []specs.Hook, status specs.ContainerState) error {
	return runHooks(ctx, w.opts.Runner, hooks, w.hookState(status))
}

// hookState is what a hook reads.
func (w *Workload) hookState(status specs.ContainerState) specs.State {
	return specs.State{
		Version: w.spec.Version, ID: w.opts.ID, Status: status, Pid: w.holder.Pid, Bundle: w.opts.Bundle,
		Annotations: w.spec.Annotations,
	}
}

// runHooks runs each hook with the state on its standard input; the first failure ends it.
func runHooks(ctx context.Context, runner runsc.Runner, hooks []specs.Hook, state specs.State) error {
	data, err := json.Marshal(state)
	if err != nil {
		return fmt.Errorf("hooks: %w", err)
	}
	for _, h := range hooks {
		if err := runHook(ctx, runner, h, data); err != nil {
			return fmt.Errorf("hook %s: %w", h.Path, err)
		}
	}
	return nil
}

func runHook(ctx context.Context, runner runsc.Runner, h specs.Hook, state []byte) error {
	limit := hookTimeout
	if h.Timeout != nil {
		limit = time.Duration(*h.Timeout) * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, h.Path)
	cmd.Args, cmd.Env, cmd.Stdin, cmd.Stderr = h.Args, h.Env, bytes.NewReader(state), &stderr
	cmd.WaitDelay = time.Second // a child of the hook may keep its standard error open
	if err := runner.Run(ctx, cmd); err != nil {
		if ctx.Err() != nil {
			err = fmt.Errorf("%w after %v: %w", context.Cause(ctx), limit, err)
		}
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(stderr.Bytes()))
	}
	return nil
}

// ending is what is to be run at the end, and with which state. It is kept in the bundle, for `delete` to find when the
// shim is gone: engines know their container by its annotations, and take down its network by them.
type ending struct {
	Hooks []specs.Hook `json:"hooks"`
	State specs.State  `json:"state"`
}

// ending is nil when there is nothing to run: no hooks, or nothing yet that they could be told of.
func (w *Workload) ending() *ending {
	if w.holder == nil || w.hooks == nil || len(w.hooks.Poststop) == 0 {
		return nil
	}
	return &ending{w.hooks.Poststop, w.hookState(specs.StateStopped)}
}

// run runs all hooks: the failure of one is no reason to leave out another's work.
func (e *ending) run(ctx context.Context, runner runsc.Runner) error {
	if e == nil {
		return nil
	}
	var errs []error
	for _, h := range e.Hooks {
		errs = append(errs, runHooks(ctx, runner, []specs.Hook{h}, e.State))
	}
	return errors.Join(errs...)
}

// runStopHooks runs what the specification asks for at the end. containerd calls `delete` after Delete as well, which
// must not run them again.
func (w *Workload) runStopHooks(ctx context.Context) error {
	e := w.ending()
	if e == nil {
		return nil
	}
	if err := e.run(ctx, w.opts.Runner); err != nil {
		w.opts.Log.Warn("poststop hook", "error", err) // as the specification asks: logged, and no more
	}
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	return w.saveState()
}
