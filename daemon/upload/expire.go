package upload

import (
	"context"
	"errors"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Wishes are what a workload has said about its snapshots in the store. The zero value says nothing.
type Wishes struct {
	Keep        int           // generations; at least 1
	DeleteAfter time.Duration // how long they are kept once it is gone; 0: for ever
	Identity    string        // under which name; "": its id
	Stopped     bool          // it was put to sleep so that it goes on elsewhere: whoever waits for that waits for the upload
}

// Expired says that a workload was ended because nobody has wanted it since it fell asleep: its snapshots go, but for those that are pinned.
func (u *Uploader) Expired(key node.Key, asleep time.Time) {
	u.mu.Lock()
	var names []string
	for _, l := range u.lineages {
		if l.record.Namespace == key.Namespace && l.record.ID == key.ID && (l.record.Gone.IsZero() || l.record.Gone.After(asleep)) {
			l.record.Expired = true
			names = append(names, l.record.Name)
		}
	}
	u.mu.Unlock()
	for _, name := range names {
		u.saveNow(name)
	}
	u.Left(key)
	time.AfterFunc(leftLater, func() { u.Left(key) }) // what is on the node may go a moment later than the news
}

const leftLater = time.Second

// deleteAt is when a lineage of a workload that is gone is destroyed; zero: it is not.
func (l *lineage) deleteAt() time.Time {
	r := l.record
	switch {
	case r.Gone.IsZero() || !r.Destroyed.IsZero() || r.Claim == "":
		return time.Time{}
	case r.Expired:
		return r.Gone
	case r.DeleteAfter > 0:
		return r.Gone.Add(r.DeleteAfter)
	}
	return time.Time{}
}

// expired is true of what is to be destroyed now.
func (l *lineage) expired(now time.Time) bool {
	at := l.deleteAt()
	return !at.IsZero() && !at.After(now) && !l.expireNext.After(now)
}

// expire destroys a lineage whose workload is gone, and which nobody has wanted for long enough. One of which a generation is pinned loses
// the others only.
func (u *Uploader) expire(ctx context.Context, l *lineage) {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	log := u.opts.Log.With("workload", r.Namespace+"/"+r.ID, "name", r.Name, "gone", time.Since(r.Gone).Round(time.Second).String())
	pinned, err := u.expireNow(ctx, r.Name)
	switch {
	case ctx.Err() != nil:
		return
	case errors.Is(err, ErrOvertaken) || errors.Is(err, durable.ErrOwned) && r.Identity != "":
		log.Info("a workload that is gone from this node is another one's by now: its snapshots are left alone")
		u.forgetOvertaken(ctx, l)
		return
	case errors.Is(err, durable.ErrNone) || errors.Is(err, durable.ErrDestroyed):
		err = nil
		u.noteDestroyed(r.Name)
	case err != nil:
		log.Warn("the snapshots of a workload that is gone could not be destroyed: it is tried again", "error", err)
	case pinned:
		log.Warn("the snapshots of a workload that is gone are removed from the store, but for those that are pinned: delete-after")
	default:
		log.Warn("the snapshots of a workload that is gone are destroyed: delete-after")
	}
	if err == nil {
		u.opts.Meter.Expired("snapshots")
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	l.expireNext = time.Now().Add(u.opts.MostPause)
	if pinned && err == nil {
		l.expireNext = time.Now().Add(24 * time.Hour)
	}
}

func (u *Uploader) expireNow(ctx context.Context, name string) (pinned bool, err error) {
	tier, err := u.handle(name, u.opts.Keep)
	if err != nil {
		return false, err
	}
	head, err := tier.Head(ctx)
	if err != nil {
		return false, err
	}
	if owner := head.Owner; owner != nil && owner.Node != u.opts.Node {
		return false, &durable.OwnedError{Name: name, Owner: *owner, Epoch: head.Epoch}
	}
	if err := u.stillOurs(ctx, name, tier); err != nil {
		return false, err
	}
	for _, g := range head.Generations {
		pinned = pinned || g.Pinned
	}
	if !pinned {
		return false, u.destroyNow(ctx, tier, head, name)
	}
	for _, g := range head.Generations {
		if !g.Pinned {
			err = errors.Join(err, tier.Remove(ctx, g.Sequence))
		}
	}
	u.collectSoon(name)
	return true, err
}

// stillOurs claims a lineage of a workload with an identity, which another node may have claimed since this one last had it: ErrOvertaken. A
// lineage of its container's is nobody else's.
func (u *Uploader) stillOurs(ctx context.Context, name string, tier *durable.Lineage) error {
	u.mu.Lock()
	l := u.lineages[name]
	var r record
	if l != nil {
		r = l.record
	}
	u.mu.Unlock()
	if r.Identity == "" {
		return nil
	}
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	seen, err := tier.Look(ctx)
	if err != nil {
		return err
	}
	if seen.Epoch != r.Epoch || seen.Owner != nil && seen.Owner.Claim != r.Claim {
		return ErrOvertaken
	}
	head, err := tier.Take(ctx, seen, durable.Claim{})
	if errors.Is(err, durable.ErrMoved) {
		return ErrOvertaken
	}
	if err != nil {
		return err
	}
	return u.keepRecord(l, func(r *record) { // of no term: it runs nowhere
		r.Claim, r.Epoch, r.Released, r.Releasing, r.Term = head.Owner.Claim, head.Epoch, false, false, ""
	})
}

// forgetOvertaken has nothing be done any more about what is another node's.
func (u *Uploader) forgetOvertaken(ctx context.Context, l *lineage) {
	if l.take(ctx) != nil {
		return
	}
	defer l.give()
	if err := u.keepRecord(l, func(r *record) {
		r.forgetClaim()
		r.Expired, r.DeleteAfter = false, 0
	}); err != nil {
		u.opts.Log.Warn("a record was not written", "error", err)
	}
}
