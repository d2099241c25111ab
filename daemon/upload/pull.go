package upload

import (
	"context"
	"errors"
	"fmt"
	"time"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// ErrMoving: the workload is on its way to another node.
var ErrMoving = errors.New("it is being moved to another node")

// Move has nothing of a workload be granted here until done is called, or for within at most: it is on its way to another node. known is false of a workload that this
// node has no claim on. What is granted already stands.
func (u *Uploader) Move(w api.Workload, to string, within time.Duration) (done func(), known bool) {
	l := u.lineageOf(w)
	u.mu.Lock()
	defer u.mu.Unlock()
	l.movingTo, l.movingUntil = to, time.Now().Add(within)
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		l.movingTo, l.movingUntil = "", time.Time{}
	}, l.record.claims()
}

// movesAway is the error of a claim on what is being moved away; nil: it isn't.
func (u *Uploader) movesAway(l *lineage) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if l.movingTo == "" || time.Now().After(l.movingUntil) {
		return nil
	}
	return fmt.Errorf("%w, %s", ErrMoving, l.movingTo)
}

// pullPause is between two tries.
const pullPause = 100 * time.Millisecond

// Pull has this node claim a workload that sleeps on another one, and take its snapshot in, for whoever starts it here. It is asked for again until
// ctx ends. received is the sequence of a snapshot that another node has sent; 0: the store has it.
func (u *Uploader) Pull(ctx context.Context, w api.Workload) (right Right, received uint64, err error) {
	if w.Identity == "" || u.opts.Fence == nil {
		return Right{}, 0, ErrInvalid
	}
	l := u.lineageOf(w)
	for {
		right, received, err = u.pullOnce(ctx, l)
		if !errors.Is(err, durable.ErrOwned) && !storeAway(err) || !pause(ctx, pullPause) {
			break
		}
	}
	if err != nil || received == 0 {
		return right, received, err
	}
	if _, err := u.takeInNow(ctx, l); err != nil && !errors.Is(err, snapshot.ErrBusy) { // else it is tried again
		u.opts.Log.Warn("what another node has sent could not be taken in: it is tried again", "name", l.record.Name, "error", err)
	}
	return right, received, nil
}

func (u *Uploader) pullOnce(ctx context.Context, l *lineage) (right Right, received uint64, err error) {
	if err := l.take(ctx); err != nil {
		return right, 0, err
	}
	defer l.give()
	term, err := u.opts.Fence.Need(ctx)
	if err != nil {
		return right, 0, err
	}
	u.mu.Lock()
	u.forgetPlaceLocked(l)
	dir := u.dirOf(l.record)
	u.mu.Unlock()
	a := &asking{Uploader: u, l: l, was: u.localState(l)}
	if s, err := newest(dir); err == nil {
		a.local = Local{Sequence: s.Sequence(), Epoch: s.Manifest().Epoch}
	}
	if !u.holds(l, term) {
		if _, err := a.ask(ctx, term); err != nil {
			return right, 0, err
		}
	}
	right = a.right()
	u.mu.Lock()
	defer u.mu.Unlock()
	if got := l.record.Received; got != nil && right.Received != "" {
		received = got.Sequence
	}
	return right, received, nil
}
