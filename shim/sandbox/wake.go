package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/api/pages"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// ByRequest is the reason of a wake that a person or program asked for; it also tries a blocked workload again.
const ByRequest = "request"

// byStart is the reason of the wake that starts a container which an earlier shim left asleep.
const byStart = "start"

// restoreAttempts bounds how often an intact snapshot is tried: about one restore in a thousand fails by itself.
const restoreAttempts = 2

// Wake returns when the workload is awake; callers share one wake. A hibernation that has not committed is undone by it.
// The wake goes on when ctx ends. Errors: ErrBlocked, ErrCordoned, ErrPaused, *lifecycle.IllegalError when the workload has ended, ctx's, or
// what failed.
func (w *Workload) Wake(ctx context.Context, why, id string) (*shimv1.Transition, error) {
	for {
		closed := w.cordoned(why)
		w.mu.Lock()
		t := w.transition
		if w.pausedSleeper() {
			resumed := w.resumed
			if why == byPacket || why == byInput {
				w.knocked = why
			}
			w.mu.Unlock()
			if err := w.awaitResume(ctx, why, resumed); err != nil {
				return nil, err
			}
			continue
		}
		switch w.state {
		case lifecycle.Awake:
			defer w.mu.Unlock()
			return w.last.wake, nil
		case lifecycle.Hibernating:
			w.mu.Unlock()
			if !t.firm {
				t.cancel(fmt.Errorf("%w (%s)", ErrActivity, why))
			}
			if _, err := t.result(ctx); ctx.Err() != nil {
				return nil, err
			}
			continue
		case lifecycle.Waking:
			w.mu.Unlock()
			return t.result(ctx)
		case lifecycle.Asleep:
			if closed != nil {
				w.mu.Unlock()
				return nil, closed
			}
			if g := w.gathering; g != nil {
				w.mu.Unlock()
				if err := w.gathered(ctx, g); err != nil {
					return nil, err
				}
				continue
			}
		case lifecycle.Blocked:
			if why != ByRequest && why != byStart {
				w.mu.Unlock()
				return nil, ErrBlocked
			}
		}
		t, err := w.begin(lifecycle.Wake, newTransition("wake", why, id, w.config.WakeTimeout, w.opts.Now, w.note))
		w.mu.Unlock()
		if err != nil {
			return nil, err
		}
		go w.wake(t)
		return t.result(ctx)
	}
}

// hold wakes the workload and keeps it awake until release is called, so that no hibernation comes between a wake and what
// it was for.
func (w *Workload) hold(ctx context.Context, why string) (release func(), err error) {
	for {
		if _, err := w.Wake(ctx, why, ""); err != nil {
			return nil, err
		}
		w.mu.Lock()
		awake := w.state == lifecycle.Awake
		if awake {
			w.busy++
		}
		w.mu.Unlock()
		if awake {
			return func() {
				w.mu.Lock()
				w.busy--
				w.mu.Unlock()
			}, nil
		}
	}
}

// wake restores the snapshot, or follows policy when it can't.
func (w *Workload) wake(t *transition) {
	if err := w.journal.Begin(t.record.GetKind(), t.record.GetId()); err != nil {
		w.opts.Log.Warn("journal", "error", err)
	}
	r, err := w.restoreChosen(t)
	if err != nil {
		w.giveUp(t, err)
		return
	}
	w.awake(t, r.outcome, r.detail)
}

// giveUp follows the policy for a snapshot that could not be restored.
func (w *Workload) giveUp(t *transition, err error) {
	var stop *stopError
	var unclaimed *unclaimedError
	cause := context.Cause(t.ctx)
	switch {
	case errors.Is(cause, ErrKilled):
		w.endTransition(t, lifecycle.Block, "killed", err.Error(), ErrKilled)
		return
	case errors.Is(cause, ErrFenced), errors.As(err, &unclaimed):
		w.withoutSandbox(t)
		w.postpone(t, err)
		return
	case w.mustRestore(), t.from != 0, errors.As(err, &stop), elsewhere(err):
		w.withoutSandbox(t)
		w.block(t, err)
		return
	}
	if e := w.mayStartCold(); e != nil {
		w.withoutSandbox(t)
		w.postpone(t, errors.Join(e, err))
		return
	}
	w.coldStart(t, err)
}

// withoutSandbox frees the sandbox that was booted beside a wake that restores nothing.
func (w *Workload) withoutSandbox(t *transition) {
	if !t.beside {
		return
	}
	if err := w.discard(t); err != nil {
		w.opts.Log.Error("a sandbox that was booted in vain", "id", t.record.GetId(), "error", err)
	}
}

// elsewhere says whether another container, perhaps on another node, could restore what this one can't.
func elsewhere(err error) bool {
	var unable *eligible.Error
	return errors.As(err, &unable)
}

// postpone ends a wake that may not be: what sleeps sleeps on, and whatever comes next wakes it again.
func (w *Workload) postpone(t *transition, why error) {
	head, err := w.local.Head()
	if errors.Is(context.Cause(t.ctx), ErrFenced) && (err != nil || head.State != snapshot.Asleep) { // it may have run already
		w.endTransition(t, lifecycle.Block, "fenced", why.Error(), why)
		return
	}
	w.endTransition(t, lifecycle.Postpone, "postponed", why.Error(), why)
}

// attempt restores one snapshot, flat first where that can be, and once more when it fails. detail says why memory was not loaded
// flat, though it should be. A corrupt snapshot is never restored, nor tried again.
func (w *Workload) attempt(t *transition, y way) (detail string, err error) {
	why, decided := "", false
	for attempt := 1; ; attempt++ {
		if err = w.eligible(t, y.snapshot); err == nil {
			if !decided { // by the runsc that restores it
				y.flat, why = w.loadWay(t.ctx, &y)
				decided = true
			}
			err = w.restore(t, &y)
		}
		if err == nil {
			return plainly(why), nil
		}
		var cut *cutOffError
		if errors.As(err, &cut) && attempt == restoreAttempts && t.ctx.Err() == nil {
			w.goOnCutOff(t, &y, cut)
			return plainly(why), nil
		}
		if errors.Is(err, overtakenError{}) { // the sandbox is of use for another snapshot
			return "", err
		}
		w.opts.Log.Error("restore", "id", t.record.GetId(), "sequence", y.snapshot.Sequence(), "attempt", attempt, "flat", y.flat, "error", err)
		if e := w.discard(t); e != nil && !(errors.Is(err, runsc.ErrVersion) && errors.Is(e, runsc.ErrMissing)) { // none was booted
			err = errors.Join(err, e)
		}
		var answered *pages.Error
		if errors.Is(err, snapshot.ErrCorrupt) || errors.As(err, &answered) {
			return "", err
		}
		if attempt == restoreAttempts || t.ctx.Err() != nil || !worthRetrying(err) {
			return "", err
		}
		if y.flat { // whatever it was: plain files need less to go well
			y.flat, why = false, err.Error()
		}
	}
}

// plainly is a wake's detail when its memory was loaded from plain files in spite of the configuration.
func plainly(why string) string {
	if why == "" {
		return ""
	}
	return "all memory was loaded before it ran: " + why
}

// setAside puts the newest snapshot, or a head that can't be read, into quarantine when err says that it is corrupt and
// the policy is to go on without it. It returns err.
func (w *Workload) setAside(t *transition, err error) error {
	if !errors.Is(err, snapshot.ErrCorrupt) || w.mustRestore() || t.from != 0 {
		return err
	}
	head, e := w.local.Head()
	switch {
	case errors.Is(e, snapshot.ErrCorrupt):
		return errors.Join(err, w.local.QuarantineHead(err.Error()))
	case e != nil:
		return errors.Join(err, e)
	}
	if _, e := w.local.Current(); errors.Is(e, snapshot.ErrNone) {
		return err
	}
	return errors.Join(err, w.local.QuarantineSequence(head.Sequence, err.Error()))
}

// worthRetrying says whether another try of the same intact snapshot could end otherwise.
func worthRetrying(err error) bool {
	var unable *eligible.Error
	var unclaimed *unclaimedError
	var stop *stopError
	var stale *staleError
	return !errors.Is(err, runsc.ErrVersion) && !errors.Is(err, runsc.ErrSpec) && !errors.Is(err, runsc.ErrMissing) &&
		!errors.Is(err, snapshot.ErrNoSpace) && !errors.As(err, &unable) && !errors.As(err, &unclaimed) && !errors.As(err, &stop) && !errors.As(err, &stale)
}

// discard frees a sandbox that didn't come to life.
func (w *Workload) discard(t *transition) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), undoTimeout)
	defer cancel()
	if w.link != nil {
		w.link.ForgetEarly()
	}
	return t.always("discard", func() error { return w.freeSandbox(ctx) })
}

// restore boots a sandbox and has the snapshot ready side by side, then loads the one into the other. Nothing of the
// snapshot reaches the sandbox before it was checked: all of it, or, when flat, each chunk. When flat it returns before
// all is loaded.
func (w *Workload) restore(t *transition, y *way) error {
	load := w.restorePlain
	if y.flat {
		load = w.restoreFlat
	}
	g, ctx := errgroup.WithContext(t.ctx)
	g.Go(func() error { return t.step(y.ready, func(context.Context) error { return y.check(ctx, y.flat) }) })
	g.Go(func() error { return w.bootFor(ctx, t) })
	g.Go(func() error { return t.step("inner", func(context.Context) error { return w.prepareWhatIs(ctx, t) }) })
	g.Go(func() error { return w.lookOutside(t, y.snapshot.Manifest()) })
	g.Go(func() error { return w.takeRight(t) })
	if err := g.Wait(); err != nil {
		return err
	}
	if y.overtaken != nil && y.overtaken() {
		return overtakenError{}
	}
	if err := t.step("claim", y.claim); err != nil {
		return err
	}
	unsettled := w.link != nil && w.origin.unsettled(w.attachment)
	if unsettled {
		if err := t.step("mute", w.mute); err != nil {
			return err
		}
	}
	w.runs()
	if err := t.step("restore", func(ctx context.Context) error { return load(ctx, y) }); err != nil {
		return err
	}
	w.give(y.snapshot.Manifest().Runtime.CPUFeatures)
	if err := w.settleMembers(t.ctx); err != nil {
		w.opts.Log.Error("containers that ended while the pod slept", "id", t.record.GetId(), "error", err)
	}
	if unsettled {
		if err := t.step("settle", w.settle); err != nil {
			return err
		}
	}
	if err := w.hookAfterWake(t); err != nil {
		return err
	}
	if err := t.step("open", w.openGate); err != nil {
		return &cutOffError{err}
	}
	w.announcePod(t.ctx)
	done := *y
	w.background.Go(func() { w.afterRestore(t, &done) })
	return nil
}

// cutOffError says that a sandbox runs, but that nobody reaches it.
type cutOffError struct{ error }

func (e *cutOffError) Unwrap() error { return e.error }

// goOnCutOff leaves a restored sandbox running that nobody reaches: its state is whole, it gets its signals, and what its
// network lacks is tried again, as with one whose network is taken away while it is awake.
func (w *Workload) goOnCutOff(t *transition, y *way, why *cutOffError) {
	w.lacks(t, why)
	w.background.Go(func() { w.afterRestore(t, y) })
}

// lacks tells in the wake's record what its network lacks, and has it tried again.
func (w *Workload) lacks(t *transition, err error) {
	w.opts.Log.Error("network", "id", t.record.GetId(), "error", err)
	t.remark("its network is not in place, and is mended as soon as it can be: " + err.Error())
	w.linkChanged()
}

// afterRestore sees to the snapshot of a sandbox that runs: as soon as all its memory is there, nobody needs it.
func (w *Workload) afterRestore(t *transition, y *way) {
	w.mu.Lock()
	l, generation := w.loading, w.generation
	w.mu.Unlock()
	if l != nil {
		w.awaitLoad(t, l)
		return
	}
	w.keepTouched(generation, y.snapshot, nil)
	if y.stored {
		y.dropped()
	} else {
		w.uncache(y.snapshot)
	}
}

// bootFor has a wake's sandbox booted. Where that has begun beside the store, its step is told already.
func (w *Workload) bootFor(ctx context.Context, t *transition) error {
	if t.beside {
		t.beside = false
		return w.bootOnce(ctx)
	}
	return t.step("boot", func(context.Context) error { return w.bootOnce(ctx) })
}

// bootOnce boots a sandbox, unless Create has done so already, or one stands by.
func (w *Workload) bootOnce(ctx context.Context) error {
	if err := w.aheadEnds(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	there, madeBy := w.sandboxPid != 0, w.madeBy
	w.mu.Unlock()
	if !there {
		return w.boot(ctx)
	}
	known, err := w.known(ctx)
	if err != nil || madeBy.Is(known.of()) {
		return err
	}
	if err := w.freeSandbox(ctx); err != nil { // another runsc was installed in the place of the one that made it
		return err
	}
	return w.boot(ctx)
}

func (w *Workload) prepareInner(ctx context.Context) error {
	if w.link == nil {
		return nil
	}
	w.gateMu.Lock() // what it mends is also mended by the watch over the link
	defer w.gateMu.Unlock()
	return w.link.PrepareInner(ctx)
}

// prepareWhatIs is prepareInner of a wake, which goes on without what the pod has lost. From here on what the sandbox says before the gate
// opens is kept for that moment.
func (w *Workload) prepareWhatIs(ctx context.Context, t *transition) error {
	err := w.prepareInner(ctx)
	if errors.Is(err, network.ErrOutside) {
		w.lacks(t, err)
		err = nil
	}
	if err == nil {
		w.keepEarly(ctx)
	}
	return err
}

// keepEarly keeps nothing of a sandbox that is to be mute: its connections are another address's. Where it can't be done, what is said too
// early is TCP's to say again.
func (w *Workload) keepEarly(ctx context.Context) {
	if w.link == nil || w.origin.unsettled(w.attachment) {
		return
	}
	if err := w.link.KeepEarly(ctx); err != nil {
		w.opts.Log.Warn("network", "error", err)
	}
}

// restored is the outcome of a wake that lost nothing.
const restored = "restored"

// awake ends a wake well. Whoever waits goes on at once; the ladder is climbed beside the traffic.
func (w *Workload) awake(t *transition, outcome, detail string) {
	w.unwatchPackets()
	w.endTransition(t, lifecycle.Woke, outcome, detail, nil)
	w.background.Go(func() {
		if err := w.saveState(); err != nil {
			w.opts.Log.Warn("state file", "error", err)
		}
		select {
		case <-time.After(ladderAfter):
			w.climb(t)
		case <-w.root().ended:
		}
	})
}

// uncacheAfter is when a wake's first work is done.
const uncacheAfter = time.Second

// uncache gives back the memory of a snapshot's files, which a workload that has been restored from them needs no more.
func (w *Workload) uncache(s *snapshot.Snapshot) {
	select {
	case <-time.After(uncacheAfter):
	case <-w.root().ended:
	}
	if err := s.Uncache(); err != nil {
		w.opts.Log.Debug("give back the memory of a snapshot's files", "error", err)
	}
}

// ladderAfter lets the first answers out before the checks, which take processor time from a sandbox that has just
// begun to fault its memory in.
const ladderAfter = 50 * time.Millisecond

// ladderTimeout bounds the checks after a restore; they never undo one.
const ladderTimeout = 2 * time.Second

// climb checks the path to the sandbox rung by rung, repairs what is broken, and adds its report to the wake's record.
func (w *Workload) climb(t *transition) {
	ctx, cancel := context.WithTimeout(context.Background(), ladderTimeout)
	defer cancel()
	begin := w.opts.Now()
	rungs := w.check(ctx, t)
	if len(rungs) == 0 {
		return
	}
	w.serveStrays(rungs)
	running, stop := w.untilEnded()
	defer stop()
	rungs = append(rungs, w.link.CheckPublished(running, w.opts.Runner.Run)...)
	took := w.opts.Now().Sub(begin)
	w.amend(t, func(record *shimv1.Transition) {
		record.Steps = append(record.Steps, &shimv1.Step{
			Name: "ladder", Ms: milliseconds(took), StartMs: milliseconds(begin.Sub(t.start)),
		})
		for _, r := range rungs {
			record.Ladder = append(record.Ladder, &shimv1.Rung{Name: r.Name, Ok: r.OK, Repaired: r.Repaired, Detail: r.Detail})
		}
	})
	for _, r := range rungs {
		if !r.OK || r.Repaired {
			w.opts.Log.Warn("ladder", "transition", t.record.GetId(), "rung", r.Name, "ok", r.OK, "repaired", r.Repaired, "detail", r.Detail)
		}
	}
}

// untilEnded is a context that ends with the container.
func (w *Workload) untilEnded() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		select {
		case <-w.root().ended:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// check runs the ladder unless another transition has begun: it must not mend what a hibernation takes apart.
func (w *Workload) check(ctx context.Context, t *transition) []network.Rung {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	w.mu.Lock()
	ports, same := w.ports, w.state == lifecycle.Awake && w.last.wake.GetId() == t.record.GetId()
	outcome := w.last.wake.GetOutcome()
	w.mu.Unlock()
	if w.link == nil || w.removed || !same {
		return nil
	}
	rungs, open := w.reopen(ctx)
	if !open { // whoever mends the link goes on with it
		return rungs
	}
	rungs = append(rungs, w.link.Check(ctx, ports)...)
	if w.config.Ports == nil && (outcome == restored || outcome == restoredOlder) { // else they may never have been listened on, or not yet
		rungs = append(rungs, w.link.CheckListeners(ctx, ports))
	}
	return rungs
}

// coldStart starts the container afresh inside the same task, because its state can't be restored, and says so. When that
// fails, too, the task ends, and the snapshot is as it was: the same container started again is restored, if it can be then.
func (w *Workload) coldStart(t *transition, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), coldStartTimeout)
	defer cancel()
	err := t.always("cold-start", func() error { return w.startCold(ctx, t, why) })
	if err == nil {
		w.awake(t, "cold-started", why.Error())
		return
	}
	w.opts.Log.Error("cold start", "id", t.record.GetId(), "error", err)
	err = errors.Join(why, err)
	_ = w.discard(t)
	if w.giveBack(t) {
		err = fmt.Errorf("%w; %s", err, keptUntilStart)
	}
	w.endTransition(t, lifecycle.Block, "failed", err.Error(), err)
	w.end(failedStatus, w.opts.Now(), true)
}

// What a person is told whose workload doesn't wake, while its snapshot is as it was.
const (
	keptUntilStart = "the snapshot is kept as it was: when this is mended, start the container again, and it is restored"
	keptUntilWake  = "the snapshot is kept as it was: when this is mended, hibernatectl wake restores it"
)

// giveBack makes an intact snapshot be all of the workload again, after a wake that has come to nothing, and says whether
// it is.
func (w *Workload) giveBack(t *transition) bool {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	_, err := w.local.Current()
	if _, known := w.inStore(); known && w.tiered.Load() && errors.Is(err, snapshot.ErrNone) {
		err = nil // what sleeps is in the store
	}
	if errors.Is(err, snapshot.ErrNone) || errors.Is(err, snapshot.ErrCorrupt) { // it is set aside
		return false
	}
	if err == nil {
		err = w.local.SetState(ctx, snapshot.Asleep)
	}
	if err != nil {
		w.opts.Log.Error("snapshot's head", "id", t.record.GetId(), "error", err)
	}
	return err == nil
}

func (w *Workload) startCold(ctx context.Context, t *transition, why error) error {
	if err := w.local.SetState(ctx, snapshot.Awake); err != nil {
		return err
	}
	if err := w.prepareWhatIs(ctx, t); err != nil {
		return err
	}
	if err := w.bootConfigured(ctx); err != nil {
		return err
	}
	w.runs()
	if err := w.runsc.Start(ctx, w.opts.ID); err != nil {
		return err
	}
	w.startMembersCold(ctx)
	if err := w.settleMembers(ctx); err != nil {
		w.opts.Log.Error("containers of the pod", "id", t.record.GetId(), "error", err)
	}
	w.keepUnused(why) // not before it is of no use any more
	if err := w.openGate(ctx); err != nil {
		w.lacks(t, err)
	}
	return nil
}

// keepUnused sets a snapshot aside that was not restored though it may be intact, as one of another runsc: the next
// hibernation would replace it.
func (w *Workload) keepUnused(why error) {
	unused := max(w.remembered().Sequence, w.newestStored())
	w.mu.Lock()
	w.saved = saved{lineage: w.saved.lineage} // nothing wakes from it any more
	w.mu.Unlock()
	w.keepStored(unused)
	if errors.Is(why, snapshot.ErrCorrupt) { // it is set aside already
		return
	}
	s, err := w.local.Current()
	if errors.Is(err, snapshot.ErrNone) {
		return
	}
	if err == nil {
		err = w.local.Quarantine(s, why.Error())
	}
	if err != nil {
		w.opts.Log.Error("a snapshot that was not restored could not be set aside", "error", err)
	}
}

const (
	coldStartTimeout = time.Minute
	// failedStatus is the exit status of a container that could be neither restored nor started.
	failedStatus = 255
)

// block keeps the snapshot and waits for a person.
func (w *Workload) block(t *transition, why error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), undoTimeout)
	defer cancel()
	if w.remembered().Sequence > 0 { // else it is in the store alone
		if err := w.local.SetState(ctx, snapshot.Asleep); err != nil {
			w.opts.Log.Error("snapshot's head", "id", t.record.GetId(), "error", err)
		}
	}
	if _, err := w.local.Current(); err == nil && !errors.Is(why, snapshot.ErrCorrupt) {
		why = fmt.Errorf("%w; %s", why, keptUntilWake)
	}
	w.endTransition(t, lifecycle.Block, "blocked", why.Error(), fmt.Errorf("%w: %w", ErrBlocked, why))
}
