package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
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
	u.Push("poststop hooks", func(ctx context.Context) error { return w.runHooks(ctx, w.hooks.Poststop, specs.StateStopped) })
	//lint:ignore SA1019 prestart is deprecated, and still what older engines send
	hooks := append(append([]specs.Hook{}, w.hooks.Prestart...), w.hooks.CreateRuntime...)
	return w.runHooks(ctx, hooks, specs.StateCreated)
}

func (w *Workload) runHooks(ctx context.Context, hooks []specs.Hook, status specs.ContainerState) error {
	state := specs.State{
		Version: w.spec.Version, ID: w.opts.ID, Status: status, Pid: w.holder.Pid, Bundle: w.opts.Bundle,
		Annotations: w.spec.Annotations,
	}
	return runHooks(ctx, w.opts.Runner, hooks, state)
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

// runStopHooks runs what the specification asks for at the end. containerd calls `delete` after Delete as well, which
// must not run them again.
func (w *Workload) runStopHooks(ctx context.Context) error {
	if w.hooks == nil || len(w.hooks.Poststop) == 0 {
		return nil
	}
	if err := w.runHooks(ctx, w.hooks.Poststop, specs.StateStopped); err != nil {
		w.opts.Log.Warn("poststop hook", "error", err) // as the specification asks: logged, and no more
	}
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	return w.saveState()
}
