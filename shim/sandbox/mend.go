package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// The link lies in a namespace in which others work, too. What they take away of it, by a slip or with all that is there,
// is put back as soon as the kernel tells of it, awake and asleep. Only the sandbox's own end can't be: a sandbox whose end is gone
// is put to sleep and woken at once, which keeps its state and its connections.

// byLink is the reason of the sleep and the wake that give a sandbox its link again.
const byLink = "link"

const (
	mendAfter = 10 * time.Millisecond  // a change seldom comes alone
	mendPause = 300 * time.Millisecond // between looks, whatever is changed
	mendAgain = 2 * time.Second        // what could not be mended yet; each time twice as much, up to:
	mendMost  = time.Minute
)

// watchLink mends the link whenever somebody has changed it, until unwatchLink.
func (w *Workload) watchLink() {
	if w.link == nil {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.mu.Lock()
	w.stopMending = cancel
	w.mu.Unlock()
	w.background.Go(func() {
		err := w.link.Changes(ctx, w.linkChanged)
		if err != nil {
			w.opts.Log.Error("the watch over the link ended", "error", err)
		}
	})
	w.background.Go(func() { w.watchUse(ctx) })
	w.background.Go(func() { w.mendAlways(ctx) })
}

// linkChanged has the link looked at soon.
func (w *Workload) linkChanged() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func (w *Workload) unwatchLink() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopMending != nil {
		w.stopMending()
	}
}

func (w *Workload) mendAlways(ctx context.Context) {
	again := time.Duration(0) // until the next look at what could not be mended; 0: all is well
	for {
		var due <-chan time.Time
		if again > 0 {
			due = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-w.changed: // perhaps what was in the way has gone
			pause(ctx, mendAfter)
		case <-due:
		}
		if w.mend(ctx) {
			again = 0
		} else {
			again = min(max(2*again, mendAgain), mendMost)
		}
		pause(ctx, mendPause)
	}
}

// pause is false when ctx has ended.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// mend looks at the link and repairs it. It is false when there is something left to do.
func (w *Workload) mend(ctx context.Context) (done bool) {
	if !w.transitionEnds(ctx) {
		return false
	}
	rungs, lost, ok := w.repairLink(ctx)
	if !ok {
		return false
	}
	done = true
	w.mended(rungs...)
	for _, r := range rungs {
		done = done && r.OK
	}
	w.serveStrays(rungs)
	if lost {
		return w.relink(ctx, slices.ContainsFunc(rungs, func(r network.Rung) bool { return r.Name == "link" && r.OK }))
	}
	return done
}

// serveStrays serves, once something of the link was repaired, the connections that the pod's own kernel may have accepted by the
// listeners meanwhile. A daemon does so by itself.
func (w *Workload) serveStrays(rungs []network.Rung) {
	repaired := slices.ContainsFunc(rungs, func(r network.Rung) bool { return r.Repaired })
	if repaired && !w.opts.Daemon.Connected() {
		w.startDraining()
	}
}

// transitionEnds waits for the end of a transition under way; false when there is nothing to be done any more.
func (w *Workload) transitionEnds(ctx context.Context) bool {
	w.mu.Lock()
	t := w.transition
	w.mu.Unlock()
	if t == nil {
		return true
	}
	select {
	case <-t.done:
		return true
	case <-ctx.Done():
		return false
	}
}

// repairLink mends all but the sandbox's end; lost says that this is gone. It is not ok when a transition has begun, which
// takes the link apart itself.
func (w *Workload) repairLink(ctx context.Context) (rungs []network.Rung, lost, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, ladderTimeout)
	defer cancel()
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	w.mu.Lock()
	state := w.state
	w.mu.Unlock()
	if w.removed || state == lifecycle.Hibernating || state == lifecycle.Waking {
		return nil, false, false
	}
	open := false
	if state == lifecycle.Awake {
		rungs, open = w.reopen(ctx)
	}
	rungs = append(rungs, w.link.Mend(ctx, open)...)
	if state != lifecycle.Awake {
		if i := slices.IndexFunc(rungs, func(r network.Rung) bool { return r.Name == "link" }); rungs[i].Repaired {
			w.unwatchPackets() // of the end that is gone
			w.watchPackets()
		}
		return rungs, false, true
	}
	lost, err := w.link.Lost()
	if err != nil {
		w.opts.Log.Warn("link", "error", err)
	}
	return rungs, lost, err == nil
}

// relink gives the sandbox the new end of its link, by a sleep and a wake. It is false when that is not possible yet, as before
// there is another link: then Status tells.
func (w *Workload) relink(ctx context.Context, linked bool) (done bool) {
	w.mu.Lock()
	w.unlinked = true
	reasons := slices.DeleteFunc(w.blockers(true), func(r *shimv1.Reason) bool { return r.GetCode() == "lease" })
	w.announce(nil)
	if !linked || len(reasons) > 0 || w.state != lifecycle.Awake {
		w.mu.Unlock()
		return false
	}
	t := newTransition("hibernate", byLink, "", hibernateTimeout, w.opts.Now, w.note)
	t.firm = true
	t, err := w.begin(lifecycle.Hibernate, t)
	w.mu.Unlock()
	if err == nil {
		go w.hibernate(t, nil)
		_, err = t.result(ctx)
	}
	if err == nil {
		_, err = w.Wake(ctx, byLink, "")
	}
	if err != nil && !errors.Is(err, context.Canceled) {
		w.opts.Log.Error("the sandbox could not be given its new link", "error", err)
	}
	return err == nil
}

// firm says whether a hibernation is under way that no use undoes.
func (w *Workload) firm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.transition != nil && w.transition.firm
}

func unlinkedReason() *shimv1.Reason {
	return reason("unlinked", "somebody has deleted its network link, so nobody reaches it: it is put to sleep and woken, "+
		"which gives it another, as soon as nothing else here hinders that")
}
