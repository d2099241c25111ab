package upload

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

var errNotThere = fs.ErrNotExist

// keepLocked is how many generations a lineage keeps.
func (u *Uploader) keepLocked(l *lineage) int {
	if l.record.Keep > 0 {
		return l.record.Keep
	}
	return u.opts.Keep
}

// tierLocked is the durable tier with so many generations. The store is open.
func (u *Uploader) tierLocked(keep int) (*durable.Tier, error) {
	if t := u.tiers[keep]; t != nil {
		return t, nil
	}
	t, err := durable.New(durable.Config{
		Store: u.store, Keys: u.opts.Keys, Node: u.opts.Node, Incarnation: u.opts.Incarnation, Generations: keep, Grace: u.opts.Grace, Workers: u.opts.Workers,
		Pace: u.leftover.pace,
	})
	if err == nil {
		u.tiers[keep] = t
	}
	return t, err
}

// handle is the lineage in the store, without a claim.
func (u *Uploader) handle(name string, keep int) (*durable.Lineage, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.store == nil {
		return nil, u.notOpenLocked()
	}
	t, err := u.tierLocked(keep)
	if err != nil {
		return nil, err
	}
	tier, err := t.Lineage(name)
	if l := u.lineages[name]; err == nil && l != nil && l.record.Place == u.place {
		tier.Remember(l.record.Epoch, l.record.Sequence) // nothing is deleted, nor written, by a head that was put back
	}
	return tier, err
}

// ErrNotOpen: the store could not be opened yet.
var ErrNotOpen = errors.New("the store is not open")

func (u *Uploader) notOpenLocked() error {
	if u.condition.Err == nil {
		return fmt.Errorf("%w: it is being tried", ErrNotOpen)
	}
	return fmt.Errorf("%w: %w", ErrNotOpen, u.condition.Err)
}

// claim gives the lineage under this node's claim: an earlier one that still holds, or a new one.
func (u *Uploader) claim(ctx context.Context, l *lineage) (*durable.Lineage, error) {
	u.mu.Lock()
	r, tier, claimed, keep := l.record, l.tier, l.claimed, u.keepLocked(l)
	u.mu.Unlock()
	if claimed {
		return tier, nil
	}
	if r.Identity != "" {
		return u.claimedTier(ctx, l)
	}
	tier, err := u.handle(r.Name, keep)
	if err != nil {
		return nil, err
	}
	elsewhere := r.Place != u.place
	if elsewhere {
		r.Sequence, r.Epoch, r.Place = 0, 0, u.place
	}
	tier.Remember(r.Epoch, r.Sequence)
	head, err := u.acquire(ctx, tier, &r, elsewhere)
	if err != nil {
		return nil, err
	}
	r.Claiming, r.Claim, r.Epoch = false, head.Owner.Claim, head.Epoch
	if g, ok := head.Newest(); ok && g.Sequence > r.Sequence { // committed by a daemon that could not write it down
		r.Sequence, r.Committed, r.Image, r.Sent = g.Sequence, g.Created, g.Image, g.Sent
	}
	u.saving.Lock()
	defer u.saving.Unlock()
	if err := u.save(r); err != nil {
		return nil, err // a claim that is not written down is lost with this process
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	r.Keep, r.DeleteAfter, r.Gone = l.record.Keep, l.record.DeleteAfter, l.record.Gone
	l.record, l.tier, l.claimed = r, tier, true
	return tier, nil
}

// acquire goes on with the claim of the record, or makes one. elsewhere: the record is of another store.
func (u *Uploader) acquire(ctx context.Context, tier *durable.Lineage, r *record, elsewhere bool) (durable.Head, error) {
	if r.Claim != "" {
		head, err := tier.Resume(ctx, r.Claim)
		if err == nil || !errors.Is(err, durable.ErrNone) && !(elsewhere && errors.Is(err, durable.ErrFenced)) {
			return head, err
		}
	}
	begun := r.Claiming
	if r.Claiming = true; !begun {
		if err := u.save(*r); err != nil {
			return durable.Head{}, err
		}
	}
	head, err := tier.Acquire(ctx, durable.Claim{})
	owned, ok := errors.AsType[*durable.OwnedError](err)
	// No other directory has a lineage of this id; and a claim by this node's name that nobody knows of is one whose daemon died before
	// it could write it down.
	if ok && owned.Owner.Node == u.opts.Node && (begun || r.Lineage != "" && r.Identity == "") {
		return tier.Acquire(ctx, durable.Claim{TakeOver: true})
	}
	return head, err
}
