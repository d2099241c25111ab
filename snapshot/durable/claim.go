package durable

import (
	"context"
	"fmt"
)

// Claim is what Acquire asks for.
type Claim struct {
	// Restore is the sequence that is going to be restored, and kept until Running says that it was. 0: a fresh start.
	Restore uint64
	// TakeOver claims although somebody else has. Only once that one is known not to run the workload any more.
	TakeOver bool
	// Above is an epoch that was counted elsewhere: the claim's is higher.
	Above uint64
}

// Acquire claims the right to run the workload: the epoch becomes one more, and commits under older ones are refused from
// then on. Without a head one begins, with a key of its own. The workload must not run before it has returned nil.
// Errors: ErrOwned, ErrNone for the sequence, those of Head.
func (l *Lineage) Acquire(ctx context.Context, c Claim) (Head, error) {
	claim := newOperation().String()
	var fresh freshKey
	h, err := l.update(ctx, func(h *Head) error {
		if h.Owner != nil && h.Owner.Claim == claim {
			return errSame
		}
		return l.claimed(ctx, h, c, claim, &fresh)
	})
	if err != nil {
		return h, fmt.Errorf("claim: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claim, l.epoch = claim, h.Epoch
	return h, nil
}

// freshKey is that of a lineage which begins; it is made once.
type freshKey struct {
	key     *WrappedKey
	lineage string
}

// claimed puts a claim into a head.
func (l *Lineage) claimed(ctx context.Context, h *Head, c Claim, claim string, fresh *freshKey) error {
	if h.Owner != nil && !c.TakeOver && h.Owner.Incarnation != l.t.incarnation {
		return &OwnedError{Name: l.name, Owner: *h.Owner, Epoch: h.Epoch}
	}
	if _, ok := h.Generation(c.Restore); c.Restore != 0 && !ok {
		return fmt.Errorf("%s: %w: no generation %d", l.name, ErrNone, c.Restore)
	}
	if h.Key == nil {
		if fresh.key == nil {
			k := newKeys()
			w, err := l.t.cfg.Keys.wrap(ctx, k)
			if err != nil {
				return err
			}
			fresh.key, fresh.lineage = &w, k.lineage.String()
		}
		h.Key, h.Lineage, h.Next = fresh.key, fresh.lineage, max(h.Next, 1)
	}
	h.Epoch = max(h.Epoch, c.Above) + 1
	h.State, h.Restoring = Running, c.Restore
	if c.Restore != 0 {
		h.State = Restoring
	}
	h.Owner = &Owner{Node: l.t.cfg.Node, Incarnation: l.t.incarnation, Claim: claim}
	return nil
}

// Resume goes on with a claim of an earlier process of this node, by what that one has kept: Head().Owner.Claim.
// ErrFenced when it is over.
func (l *Lineage) Resume(ctx context.Context, claim string) (Head, error) {
	h, err := l.Head(ctx)
	if err != nil {
		return h, fmt.Errorf("resume: %w", err)
	}
	if claim == "" || h.Owner == nil || h.Owner.Claim != claim {
		return h, fmt.Errorf("resume: %w", &FencedError{Name: l.name, Head: h.Epoch, Owner: h.Owner})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claim, l.epoch = claim, h.Epoch
	return h, nil
}

// Running says that the workload runs: what was restored needn't be kept for that any more. ErrFenced.
func (l *Lineage) Running(ctx context.Context) error {
	return l.owned(ctx, "running", func(h *Head) error {
		if h.State == Running {
			return errSame
		}
		h.State, h.Restoring = Running, 0
		return nil
	})
}

// Release says that the workload sleeps and anybody may claim it, who then restores the newest generation: what is to be
// kept is committed before. Doing it twice is no error. ErrFenced.
func (l *Lineage) Release(ctx context.Context) error {
	return l.owned(ctx, "release", func(h *Head) error {
		h.State, h.Restoring, h.Owner, h.Last = Asleep, 0, nil, l.t.cfg.Node
		return nil
	})
}

// GiveUp is Release by what the caller has kept of a claim, and of a workload that needn't sleep: without asleep it is one that has ended,
// or was deleted, and did something after the newest generation. Doing it twice is no error. ErrFenced, with the head.
func (l *Lineage) GiveUp(ctx context.Context, claim string, epoch uint64, asleep bool) (Head, error) {
	h, err := l.update(ctx, func(h *Head) error {
		switch {
		case h.Owner == nil && h.Epoch == epoch && h.State != Deleted:
			return errSame
		case claim == "" || h.Owner == nil || h.Owner.Claim != claim:
			return &FencedError{Name: l.name, Mine: epoch, Head: h.Epoch, Owner: h.Owner}
		}
		h.State, h.Restoring, h.Owner, h.Last = Running, 0, nil, l.t.cfg.Node
		if asleep {
			h.State = Asleep
		}
		return nil
	})
	if err != nil {
		return h, fmt.Errorf("give up: %w", err)
	}
	return h, nil
}

// owned changes the head under the own claim.
func (l *Lineage) owned(ctx context.Context, what string, change func(h *Head) error) error {
	_, err := l.update(ctx, func(h *Head) error {
		l.mu.Lock()
		epoch := l.epoch
		l.mu.Unlock()
		if err := l.fenced(*h); err != nil {
			return err
		}
		if what == "release" && h.Owner == nil && h.Epoch == epoch {
			return errSame
		}
		return change(h)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// fenced compares a head with the own claim. Released, it is still the own one until somebody claims the next epoch.
func (l *Lineage) fenced(h Head) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.epoch == 0 || h.Epoch != l.epoch || h.Owner != nil && h.Owner.Claim != l.claim {
		return &FencedError{Name: l.name, Mine: l.epoch, Head: h.Epoch, Owner: h.Owner}
	}
	return nil
}

// Pin keeps a generation whatever its age, or ends that.
func (l *Lineage) Pin(ctx context.Context, sequence uint64, pinned bool) error {
	return l.change(ctx, "pin", func(h *Head) error {
		for i := range h.Generations {
			if h.Generations[i].Sequence == sequence {
				if h.Generations[i].Pinned == pinned {
					return errSame
				}
				h.Generations[i].Pinned = pinned
				return nil
			}
		}
		return fmt.Errorf("%s: %w: no generation %d", l.name, ErrNone, sequence)
	})
}

// Remove drops a generation; a collection deletes what only it had. One that isn't there is no error, one that is
// pinned or being restored is.
func (l *Lineage) Remove(ctx context.Context, sequence uint64) error {
	return l.change(ctx, "remove", func(h *Head) error {
		for i, g := range h.Generations {
			if g.Sequence != sequence {
				continue
			}
			if g.Pinned {
				return fmt.Errorf("%s: generation %d is pinned: unpin it first", l.name, sequence)
			}
			if h.Restoring == sequence {
				return fmt.Errorf("%s: generation %d is being restored by %s", l.name, sequence, h.Owner.Node)
			}
			h.Generations = append(h.Generations[:i], h.Generations[i+1:]...)
			return nil
		}
		return errSame
	})
}

// Destroy takes the key and all generations out of the head. Nothing that was kept can be read again by anybody, also not
// from copies of the store's objects, unless they have an older head. ErrOwned while somebody else has claimed it.
func (l *Lineage) Destroy(ctx context.Context) error {
	_, err := l.update(ctx, func(h *Head) error {
		if h.Revision == 0 || h.State == Deleted {
			return errSame
		}
		if h.Owner != nil && h.Owner.Incarnation != l.t.incarnation {
			return &OwnedError{Name: l.name, Owner: *h.Owner, Epoch: h.Epoch}
		}
		h.Key, h.Generations, h.Owner, h.Restoring, h.State = nil, nil, nil, 0, Deleted
		h.Epoch++ // commits that are under way are fenced
		return nil
	})
	if err != nil {
		return fmt.Errorf("destroy: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.keys, l.wrap = nil, nil
	return nil
}

// Rewrap wraps the data key with the current key of the keyring. Packs and manifests stay as they are.
func (l *Lineage) Rewrap(ctx context.Context) error {
	return l.change(ctx, "rewrap", func(h *Head) error {
		if h.Key.ID == l.t.cfg.Keys.Current.ID() {
			return errSame
		}
		k, err := l.unwrap(ctx, *h.Key)
		if err != nil {
			return err
		}
		w, err := l.t.cfg.Keys.wrap(ctx, k)
		if err != nil {
			return err
		}
		h.Key = &w
		return nil
	})
}

// change is update for a lineage that is there.
func (l *Lineage) change(ctx context.Context, what string, change func(h *Head) error) error {
	_, err := l.update(ctx, func(h *Head) error {
		if h.Revision == 0 {
			return fmt.Errorf("%s: %w", l.name, ErrNone)
		}
		if h.State == Deleted {
			return fmt.Errorf("%s: %w", l.name, ErrDestroyed)
		}
		return change(h)
	})
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}
