package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// idleSince looks that nobody used the workload since before was counted. What came before the gate closed was
// acknowledged, so its sender would wait for the answer of a sandbox that sleeps; and so would the peer that the
// sandbox itself has sent something which the gate has cut. To a sandbox that nobody reaches this does not apply.
func (w *Workload) idleSince(ctx context.Context, before network.Counters) error {
	if w.firm() {
		return nil
	}
	now, err := w.traffic(ctx)
	if err == nil && now != before {
		err = fmt.Errorf("%w (%d packets while it went to sleep)", ErrActivity, now.Packets-before.Packets)
	}
	return err
}

// cut is the newest time for which the gate was closed, and what is known of the sandbox's data that it has dropped.
type cut struct {
	closed, opened time.Time
	length         time.Duration
	unsaid         network.Counters // all that was ever dropped, when last looked
	until          time.Time        // when it should have been said again
}

// flip notes that the gate moves.
func (c *cut) flip(now time.Time, from string, to network.Position) {
	switch open := network.GateOpen.String(); {
	case to == network.GateOpen && from != open:
		c.opened, c.length = now, now.Sub(c.closed)
	case to != network.GateOpen && from == open:
		c.closed = now
	}
}

// A sandbox whose data was dropped says it again when its timer is due. When it sleeps before that, nobody says it at all.
const (
	retryWithin     = time.Second
	retryWithinMost = 2 * time.Minute // gVisor's own bound of that timer
)

// saidAgainWithin is how long after a cut of that length what it has dropped is said again: half a second after a short
// one, later the longer there was no answer, and four times the length where acknowledgements that the kernel kept
// meanwhile looked like round trips (seen: 20 s after 5 s).
func saidAgainWithin(length time.Duration) time.Duration {
	return min(max(retryWithin, 4*length), retryWithinMost)
}

// recovered waits until the sandbox had the time to say again what an earlier transition's cut has dropped.
func (w *Workload) recovered(ctx context.Context, before network.Counters) error {
	if w.link == nil || w.firm() {
		return nil
	}
	unsaid, err := w.link.Unsaid(ctx)
	if err != nil {
		return err
	}
	w.mu.Lock()
	if unsaid != w.cut.unsaid {
		w.cut.unsaid = unsaid
		w.cut.until = w.cut.opened.Add(saidAgainWithin(w.cut.length))
	}
	wait := w.cut.until.Sub(w.opts.Now())
	w.mu.Unlock()
	if wait <= 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return w.idleSince(ctx, before)
	}
}
