package sandbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/api/rights"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A node that can't reach the store stops its claimed workloads by itself, with the daemon or without: they sleep when its *lease* says so,
// which keeps their state, and at its end whatever still runs is ended, before another node may take it over. A sleeper that
// the lease has put to sleep wakes when the lease is renewed.

// byLease is the reason of the sleep that the lease asks for, and of the wake after it.
const byLease = "lease"

// byOvertaking is the reason of the end of a copy that another node's has overtaken.
const byOvertaking = "overtaken"

const (
	leaseLook  = time.Second            // between looks at the clock: a timer doesn't count while the machine is suspended
	leaseClose = 100 * time.Millisecond // while the lease is as good as over
)

// watchLease keeps to the node's lease until the container ends.
func (w *Workload) watchLease(l rights.Lease) {
	ctx, stop := w.untilEnded()
	defer stop()
	for wait := time.Duration(0); pause(ctx, wait); {
		wait = w.keepLease(ctx, &l)
	}
}

// keepLease does what the lease says now, and says when to look again.
func (w *Workload) keepLease(ctx context.Context, l *rights.Lease) time.Duration {
	if now, err := rights.ReadLease(w.config.RunDir); err == nil { // else it is not renewed
		*l = now
	}
	w.mu.Lock()
	bound := w.right != nil && w.right.leased
	asleep, t := w.leaseSlept && w.state == lifecycle.Asleep, w.transition
	w.mu.Unlock()
	now := rights.SinceBoot()
	switch {
	case now < l.Sleep:
		if t != nil && t.record.GetKind() == "hibernate" && t.record.GetReason() == byLease {
			t.cancel(fmt.Errorf("%w: the node's lease was renewed", ErrActivity))
		}
		if asleep {
			w.background.Go(func() { w.wakeByLease(ctx) })
		}
		return min(l.Sleep-now, leaseLook)
	case !bound:
		return leaseLook
	case now >= l.End:
		w.fence(byLease, "the node's lease has ended: the store could not be told in time that the node lives, so another node may run it")
		return leaseLook
	}
	if t == nil || t.record.GetReason() != byLease {
		w.background.Go(func() { w.sleepByLease(ctx) })
	}
	return leaseClose
}

// sleepByLease puts the workload to sleep, whatever it does.
func (w *Workload) sleepByLease(ctx context.Context) {
	if !w.leaseSleeps.TryLock() {
		return
	}
	defer w.leaseSleeps.Unlock()
	t, err := w.Hibernate(ctx, Ask{Why: byLease, Manual: true, Urgent: true})
	if err != nil {
		w.opts.Log.Warn("the node's lease runs out, and the workload could not be put to sleep; it is tried again, and ended with the lease", "error", err)
		pause(ctx, leaseLook)
		return
	}
	w.mu.Lock()
	w.leaseSlept = t.GetReason() == byLease
	w.mu.Unlock()
}

func (w *Workload) wakeByLease(ctx context.Context) {
	if !w.leaseSleeps.TryLock() {
		return
	}
	defer w.leaseSleeps.Unlock()
	if _, err := w.Wake(ctx, byLease, ""); err != nil {
		w.opts.Log.Warn("the workload could not be woken after the node's lease was renewed", "error", err)
		pause(ctx, leaseLook)
	}
}

// ErrFenced: the workload may not run here any more.
var ErrFenced = errors.New("it may not run here any more")

// Fence ends a copy of the workload that another node's has overtaken, and sets aside what the node has of it. Errors: ErrPrecondition
// without an identity, or where it runs under a higher epoch than epoch, which is 0 for any.
func (w *Workload) Fence(ctx context.Context, epoch uint64, why string) error {
	w.mu.Lock()
	mine := w.epoch
	w.mu.Unlock()
	switch {
	case w.identity == "":
		return fmt.Errorf("%w: it has no identity, and nobody else can run it", ErrPrecondition)
	case epoch != 0 && mine > epoch:
		return fmt.Errorf("%w: it runs under epoch %d, and not under %d", ErrPrecondition, mine, epoch)
	}
	done := make(chan struct{})
	w.background.Go(func() {
		defer close(done)
		w.fence(byOvertaking, why)
	})
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// fence ends the sandbox at once, whatever goes on. Whose snapshot is all of it by then sleeps on, unless it was overtaken.
func (w *Workload) fence(reason, why string) {
	w.mu.Lock()
	if w.fencing || w.state == lifecycle.Ended {
		w.mu.Unlock()
		return
	}
	w.fencing = true // from here on no transition begins
	w.expected = true
	t, pid := w.transition, w.sandboxPid
	w.mu.Unlock()
	w.opts.Log.Error("the workload may not run here any more", "reason", reason, "detail", why)
	if pid != 0 {
		if err := identify(pid).kill(); err != nil {
			w.opts.Log.Error("fence", "error", err)
		}
	}
	if t != nil {
		t.cancel(fmt.Errorf("%w: %s", ErrFenced, why))
		<-t.done
	}
	w.mu.Lock()
	sleeps := reason == byLease && w.state == lifecycle.Asleep
	if sleeps {
		w.fencing, w.leaseSlept = false, true
	}
	w.mu.Unlock()
	if sleeps {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := w.freeSandbox(ctx); err != nil {
		w.opts.Log.Error("fence", "error", err)
	}
	w.tellFenced(reason, why)
	if reason == byOvertaking {
		w.setOvertakenAside(why)
	}
	w.end(killedStatus, w.opts.Now(), true)
}

// tellFenced tells of the end in Status and to who watches.
func (w *Workload) tellFenced(reason, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last.hibernate = &shimv1.Transition{
		Id: newID(), Kind: "hibernate", Reason: reason, Outcome: "fenced", Detail: why, StartedUnixMs: w.opts.Now().UnixMilli(),
	}
	w.announce(w.last.hibernate)
}

// setOvertakenAside keeps the node's snapshot for a person: nothing goes on from it.
func (w *Workload) setOvertakenAside(why string) {
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	s, err := w.local.Current()
	if err == nil {
		err = w.local.Quarantine(s, why)
	}
	if err == nil || errors.Is(err, snapshot.ErrNone) {
		err = w.local.SetState(ctx, snapshot.Awake) // nothing here is to be restored unasked
	}
	if err != nil {
		w.opts.Log.Error("an overtaken snapshot could not be set aside", "error", err)
	}
}
