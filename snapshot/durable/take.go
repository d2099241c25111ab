package durable

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Seen is a head as it was read, to be changed exactly as it was.
type Seen struct {
	Head    // Revision 0: there is none
	version store.Version
}

// ErrMoved: the head isn't any more what was seen. Look again.
var ErrMoved = errors.New("the head has changed meanwhile")

// Look reads the head for Take. Errors as of Head, but ErrNone.
func (l *Lineage) Look(ctx context.Context) (Seen, error) {
	h, v, err := l.read(ctx)
	if errors.Is(err, ErrNone) {
		err = nil
	}
	if err == nil && h.State == Deleted {
		err = fmt.Errorf("%s: %w", l.name, ErrDestroyed)
	}
	return Seen{h, v}, err
}

// Mine is true of a head that this incarnation of the node has claimed.
func (l *Lineage) Mine(h Head) bool { return h.Owner != nil && h.Owner.Incarnation == l.t.incarnation }

// Take is Acquire over exactly the head that was seen: whatever was concluded from it, and what was looked at after it, still holds when
// it has returned nil. ErrMoved when somebody has changed it. After an error that isn't ErrMoved or ErrOwned it may have been made, or may
// yet be: whoever looks again sees, at the latest when something else was written over it.
func (l *Lineage) Take(ctx context.Context, seen Seen, c Claim) (Head, error) {
	claim := newOperation().String()
	h := seen.clone()
	if err := l.claimed(ctx, &h, c, claim, &freshKey{}); err != nil {
		return seen.Head, fmt.Errorf("claim: %w", err)
	}
	written, won, err := l.swap(ctx, h, seen.version)
	if !won { // somebody was at it: after this change, or before it
		now, _, rerr := l.read(ctx)
		switch {
		case rerr == nil && now.Owner != nil && now.Owner.Claim == claim:
			written = now
		case err == nil && (rerr == nil || errors.Is(rerr, ErrNone)):
			return seen.Head, fmt.Errorf("claim: %s: %w", l.name, ErrMoved)
		default:
			return seen.Head, fmt.Errorf("claim: %w", errors.Join(err, rerr))
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claim, l.epoch = claim, written.Epoch
	return written, nil
}

// Confirm says once more, by a change of the head, that a claim is this node's: what was under way to the store before, such as a
// Release whose answer didn't come, can't be made any more. ErrFenced when the claim is over.
func (l *Lineage) Confirm(ctx context.Context, claim string) (Head, error) {
	h, err := l.update(ctx, func(h *Head) error {
		if claim == "" || h.Owner == nil || h.Owner.Claim != claim {
			return &FencedError{Name: l.name, Head: h.Epoch, Owner: h.Owner}
		}
		return nil
	})
	if err != nil {
		return h, fmt.Errorf("confirm: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.claim, l.epoch = claim, h.Epoch
	return h, nil
}
