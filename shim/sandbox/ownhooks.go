package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// A workload may have programs of its own that run inside at its sleep and its wake: *own hooks*. Such a program is no exec: it is not
// counted, wakes nothing and is nobody's use.

// The hooks' names, by which they are told and tell themselves apart.
const (
	beforeSleep = "hook-before-sleep"
	afterWake   = "hook-after-wake"
)

// What a hook is told in its environment, beside the container's own.
const (
	hookEnv  = "HIBERNATE_HOOK"
	afterEnv = "HIBERNATE_AFTER" // of hook-after-wake: restore, or undo

	afterRestore = "restore"
	afterUndo    = "undo"
)

// hookError says how a hook failed.
type hookError struct {
	name string
	why  error
	said string // the end of its output
}

func (e *hookError) Error() string {
	text := e.name + " " + e.why.Error()
	if said := strings.TrimSpace(e.said); said != "" {
		text += fmt.Sprintf("; it said: %q", said)
	}
	return text
}

func (e *hookError) Unwrap() error { return e.why }

// runOwnHook runs one to its end. The error is a *hookError, or the cause of ctx's end.
func (w *Workload) runOwnHook(ctx context.Context, name string, args []string, env ...string) error {
	limit := w.config.HookTimeout
	late := fmt.Errorf("took longer than hook-timeout, %v, and was killed", limit)
	limited, cancel := context.WithTimeoutCause(ctx, limit, late)
	defer cancel()
	helper, err := os.Open(w.helper)
	if err != nil {
		return &hookError{name: name, why: fmt.Errorf("could not be run: %w", err)}
	}
	defer helper.Close()
	process := *w.spec.Process
	process.Args, process.Env = args, append(append(slices.Clip(process.Env), hookEnv+"="+name), env...)
	status, said, err := w.runsc.Hook(limited, w.opts.ID, helper, process)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, late):
		return &hookError{name, late, said}
	case err != nil:
		return &hookError{name, fmt.Errorf("could not be run: %w", err), said}
	case status != 0:
		return &hookError{name, fmt.Errorf("ended with status %d", status), said}
	}
	return nil
}

// hookBeforeSleep runs the hook while the workload still has its network. What the two begin there is no use, and before is what
// was counted after it; what others begin undoes the hibernation, as elsewhere.
func (w *Workload) hookBeforeSleep(ctx context.Context, t *transition, before *network.Counters, u *undo.Stack) error {
	if err := w.tellApart(ctx, u); err != nil {
		return err
	}
	earlier, err := w.byOthers(ctx)
	if err != nil {
		return err
	}
	t.hooked = true
	err = w.runOwnHook(ctx, beforeSleep, w.config.HookBeforeSleep)
	var failed *hookError
	switch {
	case errors.As(err, &failed) && (w.config.HookFailure == config.HookIgnore || t.firm):
		w.tellHook(t, failed)
	case err != nil:
		return err
	}
	if *before, err = w.traffic(ctx); err != nil { // first: what comes between counts for both
		return err
	}
	now, err := w.byOthers(ctx)
	if err != nil {
		return err
	}
	if t.firm {
		return nil
	}
	if now != earlier {
		return fmt.Errorf("%w (%d packets while %s ran)", ErrActivity, now.Packets-earlier.Packets, beforeSleep)
	}
	return w.stillFree()
}

// stillFree refuses to go on where something has come up while a hook ran.
func (w *Workload) stillFree() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if reasons := w.blockers(true); len(reasons) > 0 {
		return &RefusedError{Reasons: reasons}
	}
	return nil
}

// tellHook tells of a failure that is ignored.
func (w *Workload) tellHook(t *transition, failed *hookError) {
	w.opts.Log.Warn("a hook has failed, and is ignored", "id", t.record.GetId(), "error", failed)
	t.remark("ignored: " + failed.Error())
}

// tellApart has the gate count others' use by itself.
func (w *Workload) tellApart(ctx context.Context, u *undo.Stack) error {
	if w.link == nil {
		return nil
	}
	if _, err := w.findSockets(ctx); err != nil {
		return err
	}
	u.Push("gate", w.openGate)
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	w.mu.Lock()
	ports := append([]uint16{}, w.ports...)
	w.mu.Unlock()
	return w.setGate(ctx, network.Gate{Position: network.GateOpen, Ports: ports, Clients: true})
}

// byOthers is what others have begun.
func (w *Workload) byOthers(ctx context.Context) (network.Counters, error) {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.link == nil || w.removed {
		return network.Counters{}, nil
	}
	return w.link.ByClients(ctx)
}

// hookAfterWake is a wake's step between the restore and the opening of the gate. A failure that is not ignored blocks the wake: nobody has
// reached the sandbox yet, so its snapshot can be restored again.
func (w *Workload) hookAfterWake(t *transition) error {
	if len(w.config.HookAfterWake) == 0 {
		return nil
	}
	return t.step("hook", func(ctx context.Context) error {
		err := w.runOwnHook(ctx, afterWake, w.config.HookAfterWake, afterEnv+"="+afterRestore)
		var failed *hookError
		switch {
		case err == nil:
			return nil
		case ctx.Err() == nil && w.sandboxEnded(): // with or without a hook: what becomes of that is not its matter
			return nil
		case ctx.Err() == nil && w.config.HookFailure == config.HookIgnore && errors.As(err, &failed):
			w.tellHook(t, failed)
			return nil
		case errors.Is(err, context.DeadlineExceeded):
			err = &hookError{name: afterWake, why: fmt.Errorf("did not end within the wake's time, wake-timeout (%v), and was killed: %w", w.config.WakeTimeout, err)}
		}
		return &stopError{err}
	})
}

// endNoticed is how long the kernel and the reaper may take to tell of a sandbox's end, after runsc has failed for it.
const endNoticed = 500 * time.Millisecond

// sandboxEnded says whether the sandbox is gone.
func (w *Workload) sandboxEnded() bool {
	w.mu.Lock()
	pid := w.sandboxPid
	w.mu.Unlock()
	if pid == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(context.Background(), endNoticed)
	defer cancel()
	for identify(pid).Start != 0 {
		if !pause(ctx, 5*time.Millisecond) {
			return false
		}
	}
	return true
}

// keepForHook has the workload stay awake for the hook that follows an undone hibernation.
func (w *Workload) keepForHook(t *transition, cause error) (needed bool) {
	needed = t.hooked && len(w.config.HookAfterWake) > 0 && !errors.Is(cause, ErrKilled) && !errors.Is(cause, ErrFenced) && !errors.Is(cause, ErrExited)
	if needed {
		w.mu.Lock()
		w.busy++
		w.mu.Unlock()
	}
	return needed
}

// hookAfterUndo takes back by hook-after-wake what the hook before a hibernation has done that came to nothing. The workload is awake meanwhile, and
// reached; a failure is told in the record of that hibernation.
func (w *Workload) hookAfterUndo(t *transition) {
	ctx, stop := w.untilEnded()
	defer stop()
	err := w.runOwnHook(ctx, afterWake, w.config.HookAfterWake, afterEnv+"="+afterUndo)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy--
	w.announce(nil)
	if err == nil || w.state == lifecycle.Ended || ctx.Err() != nil {
		return
	}
	w.opts.Log.Error("a hook has failed after an undone hibernation", "id", t.record.GetId(), "error", err)
	if last := w.last.hibernate; last.GetId() == t.record.GetId() {
		record := proto.CloneOf(last)
		record.Detail += "; " + err.Error()
		w.last.hibernate = record
		w.announce(record)
	}
}
