package upload

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

var _ peer.Workloads = (*Uploader)(nil)

// yielded says that a claim was given to another node. Until this node has changed the head again, that node may.
type yielded struct {
	To       string `json:"to"`
	Sequence uint64 `json:"sequence"`
}

const (
	// offerPoll is between two looks whether a workload sleeps, while another node waits for that.
	offerPoll = 10 * time.Millisecond
	// heldBack is how long an upload waits for another node that fetches the same snapshot, without a sign of that.
	heldBackFor = 20 * time.Second
	// takenWithin is how long after a yield an upload waits for the other node's change of the head.
	takenWithin = 3 * time.Second
)

// errYielded ends the upload of what another node is going to upload.
var errYielded = errors.New("another node fetches it, and uploads it itself")

// claimed is the lineage of an ask, whose claim must be the one that this node has.
func (u *Uploader) claimed(a peer.Ask) (*lineage, record, error) {
	dir := snapshot.DirFor(u.opts.DataDir, a.Namespace, "", a.Identity)
	name := nameOf(dir, snapshot.Head{Identity: a.Identity})
	u.mu.Lock()
	defer u.mu.Unlock()
	l := u.lineages[name]
	if l == nil || a.Identity == "" {
		return nil, record{}, fmt.Errorf("%w: %s is not known here", peer.ErrUnavailable, a.Namespace+"/"+a.Identity)
	}
	r := l.record
	switch {
	case r.Namespace != a.Namespace || r.Identity != a.Identity:
		return nil, r, &peer.IdentityError{What: fmt.Sprintf("%s/%s was asked for, and is %s/%s here", a.Namespace, a.Identity, r.Namespace, r.Identity), Do: "report this: it should be impossible"}
	case !r.claims() || r.Claim != a.Owner.Claim:
		return nil, r, fmt.Errorf("%w: the claim that is meant is over, or not known yet", peer.ErrUnavailable)
	case r.Unconfirmed:
		return nil, r, fmt.Errorf("%w: it may have run here without the store's leave", peer.ErrRuns)
	}
	return l, r, nil
}

// Offer implements peer.Workloads. Its upload is held back meanwhile: the other node gets it sooner, and the store by that one.
func (u *Uploader) Offer(ctx context.Context, a peer.Ask) (*snapshot.Snapshot, func(), error) {
	for {
		l, r, err := u.claimed(a)
		if err != nil {
			return nil, nil, err
		}
		if s := u.asleepWith(l, r); s != nil {
			u.holdBack(l)
			return s, func() { u.letGo(l, takenWithin) }, nil
		}
		timer := time.NewTimer(offerPoll)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, nil, fmt.Errorf("%w: it runs", peer.ErrRuns)
		}
	}
}

// asleepWith is the snapshot that was made after the last grant, if its head says that it is what the workload is. Whether nothing of it is left
// running is Yield's to find out.
func (u *Uploader) asleepWith(l *lineage, r record) *snapshot.Snapshot {
	u.mu.Lock()
	granted := l.granted
	u.mu.Unlock()
	dir := u.dirOf(r)
	head, err := snapshot.ReadHead(dir)
	if err != nil || head.State != snapshot.Asleep || granted != nil && head.Sequence <= *granted {
		return nil
	}
	found, err := snapshot.Inspect(dir)
	if err != nil || found.Snapshot == nil || found.Snapshot.Manifest().Epoch < r.Since {
		return nil
	}
	return found.Snapshot
}

// holdBack has a lineage's upload wait.
func (u *Uploader) holdBack(l *lineage) {
	u.mu.Lock()
	defer u.mu.Unlock()
	l.heldBack = time.Now().Add(heldBackFor)
	if l.cancel != nil && l.sending != 0 {
		l.cancel(errYielded)
	}
}

// letGo has it wait no longer than that.
func (u *Uploader) letGo(l *lineage, within time.Duration) {
	u.mu.Lock()
	l.heldBack = time.Now().Add(within)
	u.mu.Unlock()
	u.wake()
}

// Yield implements peer.Workloads: nothing of the workload runs here, and nothing will but under a claim that has changed the head.
func (u *Uploader) Yield(ctx context.Context, a peer.Ask) error {
	l, _, err := u.claimed(a)
	if err != nil {
		return err
	}
	if err := l.take(ctx); err != nil {
		return fmt.Errorf("%w: %w", peer.ErrUnavailable, err)
	}
	defer l.give()
	if _, _, err = u.claimed(a); err != nil {
		return err
	}
	head, what, err := u.sleepsHere(ctx, l)
	switch {
	case err != nil:
		return fmt.Errorf("%w: %w", peer.ErrUnavailable, err)
	case what != sleeps || head.Sequence != a.Sequence:
		u.letGo(l, 0)
		return fmt.Errorf("%w: it runs, or has slept with another snapshot since", peer.ErrRuns)
	}
	u.holdBack(l)
	if err := u.keepRecord(l, func(r *record) { r.Releasing, r.Yielded = true, &yielded{To: a.Node, Sequence: a.Sequence} }); err != nil {
		return fmt.Errorf("%w: %w", peer.ErrUnavailable, err)
	}
	u.mu.Lock()
	l.yieldAt = time.Now().Add(takenWithin)
	u.mu.Unlock()
	u.letGo(l, takenWithin)
	return nil
}

// Taken implements peer.Workloads.
func (u *Uploader) Taken(a peer.Ask) {
	l, _, err := u.claimed(a)
	if err != nil {
		return
	}
	u.mu.Lock()
	if l.record.Yielded != nil {
		l.yieldAt = time.Now()
	}
	u.mu.Unlock()
	u.wake()
}

// settleYield looks what came of a yield. While nothing did, the snapshot is uploaded and released as ever: who comes later finds another head.
func (u *Uploader) settleYield(ctx context.Context, l *lineage) {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	err := u.settleYieldNow(ctx, l)
	u.mu.Lock()
	defer u.mu.Unlock()
	l.yieldAt = time.Time{}
	if err != nil {
		u.opts.Log.Debug("what came of a hand-over could not be found out: it is tried again", "name", l.record.Name, "error", err)
		l.yieldAt = time.Now().Add(u.pauseAfter(3))
	}
}

func (u *Uploader) settleYieldNow(ctx context.Context, l *lineage) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	if r.Yielded == nil {
		return nil
	}
	tier, err := u.rightsOf(l)
	if err != nil {
		return err
	}
	seen, err := tier.Look(ctx)
	if err != nil {
		return err
	}
	if seen.Owner != nil && seen.Owner.Claim == r.Claim {
		return nil
	}
	return u.handedOver(l, seen.Head)
}

// handedOver notes that another node has what was yielded. The turn is held. The snapshot stays until the store has a newer one.
func (u *Uploader) handedOver(l *lineage, head durable.Head) error {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	who := head.Last
	if head.Owner != nil {
		who = head.Owner.Node
	}
	err := u.keepRecord(l, func(r *record) {
		if r.Yielded != nil {
			r.Handed = max(r.Handed, r.Yielded.Sequence)
		}
		r.forgetClaim()
	})
	u.mu.Lock()
	l.claimed, l.tier, l.heldBack, l.since = false, nil, time.Time{}, time.Time{}
	u.mu.Unlock()
	u.opts.Meter.Released()
	u.opts.Log.Info("a workload was handed over to another node", "workload", r.Namespace+"/"+r.Identity, "node", who, "epoch", head.Epoch)
	return err
}

// sleepsHere judges a workload whose turn is held: sleeps, or runs. It asks the shim, and the kernel whether there is one.
func (u *Uploader) sleepsHere(ctx context.Context, l *lineage) (snapshot.Head, rest, error) {
	u.mu.Lock()
	r, granted := l.record, l.granted
	u.mu.Unlock()
	dir := u.dirOf(r)
	held, err := snapshot.Held(dir)
	if err != nil {
		return snapshot.Head{}, runs, err
	}
	head, err := snapshot.ReadHead(dir)
	if err != nil || head.State != snapshot.Asleep {
		return head, runs, err
	}
	if held {
		state := ""
		if u.opts.Shims != nil {
			if state, err = u.opts.Shims.State(ctx, r.Namespace, r.Identity); err != nil {
				return head, runs, err
			}
		}
		if state != "asleep" && state != "ended" || granted != nil && head.Sequence <= *granted {
			return head, runs, nil
		}
	}
	if e := u.epochOf(dir, head.Sequence); e == noEpoch || e < r.Since {
		return head, runs, nil
	}
	return head, sleeps, nil
}
