package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/trim"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

const (
	hibernateTimeout = 10 * time.Minute      // for the whole of it; a checkpoint writes all memory
	quietFor         = 20 * time.Millisecond // without traffic from the sandbox before it is paused
	quietWithin      = time.Second           // or the hibernation is undone
)

// Ask is a request to hibernate.
type Ask struct {
	Why    string
	Manual bool // overrides the mode and the want of a network
	Urgent bool // nobody's use undoes it, nor do execs, leases and requests hinder it: what they are for ends otherwise
	// Judged are the packets by which the workload was found idle; nil: nobody looked. Others by now refuse it.
	Judged *uint64
}

// Hibernate puts the workload to sleep and returns how that went. One that sleeps already answers with its last
// hibernation; one under way is joined; a wake is let end first. Errors: *RefusedError, *AbortedError,
// *lifecycle.IllegalError, ctx's, or what failed. After any error the workload runs on.
func (w *Workload) Hibernate(ctx context.Context, ask Ask) (*shimv1.Transition, error) {
	w.mu.Lock()
	switch w.state {
	case lifecycle.Asleep:
		defer w.mu.Unlock()
		return w.last.hibernate, nil
	case lifecycle.Hibernating:
		t := w.transition
		w.mu.Unlock()
		return t.result(ctx)
	case lifecycle.Waking: // the first answers come before its end
		t := w.transition
		w.mu.Unlock()
		if _, err := t.result(ctx); err != nil {
			return nil, err
		}
		return w.Hibernate(ctx, ask)
	}
	if w.loading != nil {
		w.mu.Unlock()
		if err := w.loadEnds(ctx); err != nil {
			return nil, err
		}
		return w.Hibernate(ctx, ask)
	}
	reasons := append(w.blockers(ask.Manual), w.runningProbes()...)
	if ask.Urgent {
		reasons = slices.DeleteFunc(reasons, passing)
	}
	if w.state == lifecycle.Awake && len(reasons) > 0 {
		w.mu.Unlock()
		return nil, &RefusedError{Reasons: reasons}
	}
	t := newTransition("hibernate", ask.Why, "", hibernateTimeout, w.opts.Now, w.note)
	t.firm = ask.Urgent
	t, err := w.begin(lifecycle.Hibernate, t)
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	go w.hibernate(t, ask.Judged)
	return t.result(ctx)
}

// passing says whether a reason is no reason any more where the workload is about to end otherwise.
func passing(r *shimv1.Reason) bool {
	switch r.GetCode() {
	case "exec", "lease", "busy", "probe", byForward:
		return true
	}
	return false
}

// begin starts a transition. The caller holds w.mu.
func (w *Workload) begin(e lifecycle.WorkloadEvent, t *transition) (*transition, error) {
	if w.killed || w.stopping && e == lifecycle.Wake {
		t.cancel(ErrKilled)
		return nil, ErrKilled
	}
	if w.fencing {
		t.cancel(ErrFenced)
		return nil, ErrFenced
	}
	if err := w.move(e, nil); err != nil {
		t.cancel(err)
		return nil, err
	}
	w.transition = t
	return t, nil
}

func (w *Workload) note(step string) {
	if err := w.journal.Step(step); err != nil {
		w.opts.Log.Warn("journal", "step", step, "error", err)
	}
}

// hibernate runs the steps up to the commit, each of them undone when a later one fails or somebody talks to the
// workload; then the memory is freed.
func (w *Workload) hibernate(t *transition, judged *uint64) {
	if err := w.journal.Begin(t.record.GetKind(), t.record.GetId()); err != nil {
		w.opts.Log.Warn("journal", "error", err)
	}
	var u undo.Stack
	err := w.descend(t, judged, &u)
	if err == nil {
		u.Release()
		w.fallAsleep(t)
		return
	}
	cause := err
	if t.ctx.Err() != nil {
		cause = context.Cause(t.ctx)
	}
	if errors.Is(cause, ErrKilled) || errors.Is(cause, ErrFenced) { // nothing to go back to: whoever kills frees the sandbox
		u.Release()
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if e := t.always("undo", func() error { return u.Run(ctx) }); e != nil {
		w.opts.Log.Error("hibernation could not be undone", "id", t.record.GetId(), "error", e)
		w.linkChanged() // if it is the network, it is tried again
	}
	hook := w.keepForHook(t, cause)
	w.stayAwake(t, cause)
	if hook {
		w.background.Go(func() { w.hookAfterUndo(t) })
	}
}

// descend runs the steps before the commit.
func (w *Workload) descend(t *transition, judged *uint64, u *undo.Stack) error {
	before, err := w.traffic(t.ctx)
	if err != nil {
		return err
	}
	if judged != nil && *judged != before.Packets { // what came between is before all that is compared below
		return refusedActive(before.Packets - *judged)
	}
	var incoming *snapshot.Incoming
	var sealed snapshot.Sealed
	var volumes map[string][]snapshot.Volume
	u.Push("incoming snapshot", func(context.Context) error { // undone last: whoever talks has waited for the rest
		if incoming == nil {
			return nil
		}
		return incoming.Discard()
	})
	const always = true
	for _, s := range []struct {
		name   string
		wanted bool
		run    func(context.Context) error
	}{
		{"guard", always, func(ctx context.Context) error { return w.guard(ctx, before) }},
		{"hook", len(w.config.HookBeforeSleep) > 0, func(ctx context.Context) error { return w.hookBeforeSleep(ctx, t, &before, u) }},
		{"quiesce", always, func(ctx context.Context) error { return w.quiesce(ctx, t, before, u) }},
		{"pause", always, func(ctx context.Context) error { return w.still(ctx, u) }},
		{"checkpoint", always, func(ctx context.Context) (err error) {
			if incoming, err = w.local.Begin(ctx); err != nil {
				return err
			}
			defer incoming.WriteAhead()() // the disk works while runsc writes
			return w.runsc.Checkpoint(ctx, w.opts.ID, runsc.CheckpointOptions{ImagePath: incoming.ImageDir()})
		}},
		{"volumes", len(w.mountsOutside()) > 0, func(ctx context.Context) (err error) {
			volumes, err = w.keepVolumes(ctx)
			return err
		}},
		{"verify", always, func(ctx context.Context) (err error) {
			sealed, err = incoming.Seal(ctx)
			return err
		}},
		{"commit", always, func(ctx context.Context) error {
			if err := w.idleSince(ctx, before); err != nil { // its timers go on in a pause: it says again what was lost
				return err
			}
			return w.commit(ctx, incoming, sealed, volumes)
		}},
	} {
		if !s.wanted {
			continue
		}
		if err := t.step(s.name, s.run); err != nil {
			return err
		}
	}
	return nil
}

// guard looks again whether the workload may sleep, at what costs something to look at.
func (w *Workload) guard(ctx context.Context, before network.Counters) error {
	if err := w.checkSpace(); err != nil {
		return err
	}
	if err := w.sameRunsc(ctx); err != nil {
		return err
	}
	return w.recovered(ctx, before)
}

// still pauses the sandbox, in which no connection of a port-forward is left.
func (w *Workload) still(ctx context.Context, u *undo.Stack) error {
	if err := w.forward.endInside(ctx); err != nil {
		return err
	}
	u.Push("resume", w.resumeSandbox)
	// To its end, whoever talks: one cut short may pause a sandbox that runsc believes running, and won't resume.
	return w.pauseCall(context.WithoutCancel(ctx))
}

// resumeSandbox undoes a pause that may not have happened. One that fails is tried again: a sandbox that stayed paused
// would be lost to everybody. Before that the sandbox is looked at: a runsc that was killed may have done its work without noting it,
// and to resume one that runs would end it.
func (w *Workload) resumeSandbox(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, resumeWithin)
	defer cancel()
	for {
		err := w.resumeCall(ctx)
		if err == nil || errors.Is(err, runsc.ErrNotFound) {
			return nil
		}
		paused, e := w.runsc.Paused(ctx, w.opts.ID)
		switch {
		case e != nil && errors.Is(err, runsc.ErrNotRunning): // it has ended
			return nil
		case e != nil:
			err = errors.Join(err, e)
		default:
			w.noteState(paused)
			if !paused {
				return nil
			}
		}
		w.opts.Log.Warn("resume", "error", err)
		select {
		case <-ctx.Done():
			return err
		case <-time.After(resumeAgain):
		}
	}
}

const (
	resumeWithin = undoTimeout - 5*time.Second // what else is to be undone has the rest
	resumeAgain  = 100 * time.Millisecond
)

// quiesce stops the traffic both ways: what comes in first, so that answers still get out, then the rest. From here on
// the kernel keeps what peers send, the proxy holds new connections, and either of them ends the hibernation. The ports
// to hold are learned in the time that it has to be quiet anyway. Only keep-alives end nothing: they are kept until the
// sandbox, which nothing reaches any more, has told the state of its connections, and then answered.
func (w *Workload) quiesce(ctx context.Context, t *transition, before network.Counters, u *undo.Stack) error {
	if w.link == nil {
		_, err := w.findSockets(ctx)
		return err
	}
	u.Push("gate", w.openGate)
	w.watchPackets()
	if err := w.link.HoldKeepAlives(ctx); err != nil { // as with a kernel that has no log for packets
		w.opts.Log.Warn("keep-alives will wake it", "error", err)
	}
	if err := w.disconnect(ctx); err != nil {
		return err
	}
	var flows []network.Flow
	g, both := errgroup.WithContext(ctx)
	g.Go(func() error { return w.awaitQuiet(both, t) })
	g.Go(func() (err error) { flows, err = w.findSockets(both); return err })
	if err := g.Wait(); err != nil {
		return err
	}
	w.mu.Lock()
	ports := w.ports
	w.mu.Unlock()
	if err := w.closeGate(ctx, ports); err != nil {
		return err
	}
	if err := w.learnConnections(ctx, flows); err != nil {
		return err
	}
	return w.idleSince(ctx, before)
}

// findSockets learns the ports and keeps them, and returns the connections.
func (w *Workload) findSockets(ctx context.Context) ([]network.Flow, error) {
	found, err := w.learnSockets(ctx)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ports, w.only4 = found.ports, found.only4
	return found.flows, nil
}

func (w *Workload) learnConnections(ctx context.Context, flows []network.Flow) error {
	known, err := w.link.LearnConnections(ctx, flows)
	if errors.Is(err, network.ErrUnseen) {
		err = fmt.Errorf("%w: %w", ErrActivity, err)
	}
	w.opts.Log.Debug("connections", "open", len(flows), "known", known, "error", err)
	return err
}

// awaitQuiet waits until nothing is under way inside any more.
func (w *Workload) awaitQuiet(ctx context.Context, t *transition) error {
	quiet, cancel := context.WithTimeoutCause(ctx, quietWithin, errNotQuiet)
	defer cancel()
	err := w.link.Quiet(quiet, quietFor)
	if err != nil && t.ctx.Err() == nil && quiet.Err() != nil {
		return errNotQuiet
	}
	return err
}

var errNotQuiet = fmt.Errorf("the sandbox did not stop sending within %v: %w", quietWithin, ErrActivity)

func (w *Workload) commit(ctx context.Context, in *snapshot.Incoming, sealed snapshot.Sealed, volumes map[string][]snapshot.Volume) error {
	manifest, err := w.manifest(ctx, sealed)
	if err != nil {
		return err
	}
	for i, c := range manifest.Containers {
		name := c.Name
		if i == 0 {
			name = ""
		}
		manifest.Containers[i].Volumes = volumes[name]
	}
	s, err := in.Commit(ctx, manifest)
	if err != nil {
		return err
	}
	w.mu.Lock()
	w.saved = saved{sequence: s.Manifest().Sequence, bytes: s.Size(), lineage: s.Manifest().Lineage}
	w.mu.Unlock()
	return nil
}

// fallAsleep frees the memory of a workload whose snapshot is committed.
func (w *Workload) fallAsleep(t *transition) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := t.always("free", func() error { return w.freeSandbox(ctx) }); err != nil {
		w.opts.Log.Error("the sandbox's memory could not be freed cleanly", "id", t.record.GetId(), "error", err)
	}
	w.endTransition(t, lifecycle.Commit, "slept", "", nil)
	time.AfterFunc(trimAfter, w.trim)
	w.background.Go(w.standBy)
	w.background.Go(w.purgeQuarantine)
}

// purgeQuarantine deletes what was set aside longer ago than delete-after: nobody has wanted it since.
func (w *Workload) purgeQuarantine() {
	if w.config.DeleteAfter <= 0 {
		return
	}
	gone, err := w.local.PurgeBefore(w.opts.Now().Add(-w.config.DeleteAfter))
	for _, q := range gone {
		w.opts.Log.Warn("a snapshot that was set aside is deleted: delete-after", "id", w.opts.ID, "sequence", q.Sequence, "set_aside", q.Time, "because", q.Reason)
	}
	if err != nil {
		w.opts.Log.Error("quarantine could not be emptied: it is tried again after the next sleep", "id", w.opts.ID, "error", err)
	}
}

// trimAfter is how long a workload sleeps before the shim gives back memory of its own: a quick wake shall not fault it
// all in again.
const trimAfter = 5 * time.Second

func (w *Workload) trim() {
	w.mu.Lock()
	asleep := w.state == lifecycle.Asleep
	w.mu.Unlock()
	if !asleep {
		return
	}
	if err := trim.Process(); err != nil {
		w.opts.Log.Debug("give back the shim's memory", "error", err)
	}
}

// stayAwake ends a hibernation that did not happen.
func (w *Workload) stayAwake(t *transition, cause error) {
	outcome, err := "failed", cause
	switch {
	case isRefused(cause):
		outcome = "refused"
	case errors.Is(cause, ErrActivity), errors.Is(cause, ErrMemberExited), errors.Is(cause, ErrKilled), errors.Is(cause, ErrExited), errors.Is(cause, ErrFenced):
		outcome, err = "aborted", &AbortedError{Cause: cause}
	}
	w.endTransition(t, lifecycle.Abort, outcome, cause.Error(), err)
	w.background.Go(w.quicken)
}

// endTransition moves the workload and lets go whoever waits.
func (w *Workload) endTransition(t *transition, e lifecycle.WorkloadEvent, outcome, detail string, err error) {
	if e := w.journal.End(); e != nil {
		w.opts.Log.Warn("journal", "error", e)
	}
	record := t.finish(outcome, detail, err)
	w.mu.Lock()
	w.transition, w.waits = nil, ""
	w.count(record)
	if e := w.move(e, record); e != nil && w.state != lifecycle.Ended {
		w.opts.Log.Error("lifecycle", "error", e)
	}
	if w.state == lifecycle.Awake {
		w.leaseSlept = false
	} else {
		w.dropRight()
	}
	w.mu.Unlock()
	t.cancel(nil)
	close(t.done)
	w.opts.Log.Info(record.GetKind(), "id", record.GetId(), "reason", record.GetReason(), "outcome", outcome,
		"detail", detail, "ms", record.GetTotalMs())
}

// count keeps what Status tells of past transitions. The caller holds w.mu.
func (w *Workload) count(r *shimv1.Transition) {
	switch {
	case r.GetKind() == "wake":
		w.last.wake = r
		w.wakes++
		w.noteWake()
	default:
		w.last.hibernate = r
		if r.GetOutcome() == "slept" {
			w.sleeps++
		}
	}
}
