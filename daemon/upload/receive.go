package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Peers are the daemons of other nodes. See package peer for the errors.
type Peers interface {
	// Fetch brings the snapshot with which a workload sleeps at its owner into dir.
	Fetch(ctx context.Context, a peer.Ask, dir string, tell func(done, all int64)) (*snapshot.Snapshot, error)
	// Yield asks its owner for the claim. After nil it has either not changed the head since, or has the workload.
	Yield(ctx context.Context, a peer.Ask) error
	// Taken tells the former owner that the head is changed.
	Taken(ctx context.Context, a peer.Ask) error
}

// received is a snapshot that another node's daemon has sent. It is kept beside the records until the workload's directory has it.
type received struct {
	From     string `json:"from"`  // node
	Claim    string `json:"claim"` // that node's
	Head     uint64 `json:"head"`  // the epoch of that claim
	Sequence uint64 `json:"sequence"`
	Epoch    uint64 `json:"epoch"`
	// Counts: this node has the claim that followed, so the snapshot is what the workload is.
	Counts bool `json:"counts,omitempty"`
	// Whole: it was handed over with that claim, so nothing came after it.
	Whole bool `json:"whole,omitempty"`
}

// in says whether a snapshot of these numbers is this one or newer.
func (r *received) in(sequence, epoch uint64) bool {
	return epoch > r.Epoch || epoch == r.Epoch && sequence >= r.Sequence
}

// reception is one that is under way, or has ended. Its fields but done are guarded by Uploader.mu, and err by done.
type reception struct {
	claim     string
	done      chan struct{}
	err       error
	got, all  int64
	cancelled context.CancelFunc
}

const (
	// fetchWait is how long the owner may let a fetch wait for the workload to sleep.
	fetchWait = 5 * time.Second
	// yieldTime is what a claim needs once all has come.
	yieldTime = 2 * time.Second
	// takeInAfter is when a shim that was given the right has taken the snapshot in.
	takeInAfter = 300 * time.Millisecond
	// noRoomFor is how long a snapshot isn't asked for again that there was no room for. Each time that it is asked for puts its upload off.
	noRoomFor = time.Minute
	// tellLimit bounds telling the former owner.
	tellLimit = 5 * time.Second
)

var errNoRoom = errors.New("there is no room for it here: it comes by the store, once that has it")

// receivedDir is where what other nodes send of a lineage is put.
func (u *Uploader) receivedDir(name string) string {
	return filepath.Join(u.opts.DataDir, recordsDir, "received", strings.ReplaceAll(name, "/", "+"))
}

// yielded has the owner of the head that was seen give the workload up, with its snapshot. why says why it doesn't; a nil error with it means that
// it is worth another try.
func (a *asking) yielded(ctx context.Context, seen durable.Head) (ok bool, why, err error) {
	if a.opts.Peers == nil {
		return false, nil, nil
	}
	ask := a.question(seen)
	if why, err = a.await(ctx, ask); why != nil || err != nil {
		return false, why, err
	}
	a.mu.Lock()
	r := a.l.record.Received
	a.mu.Unlock()
	if r == nil { // it was given up meanwhile
		return false, errors.New("what has come was not noted"), nil
	}
	ask.Sequence = r.Sequence
	err = a.opts.Peers.Yield(ctx, ask)
	switch {
	case err == nil:
		return true, nil, nil
	case errors.Is(err, peer.ErrRuns): // it has been woken since, and sleeps with another one next
		a.dropReceived(r)
	}
	return false, soft(err), hard(err)
}

// soft and hard tell an error that is worth another try from one that stops.
func soft(err error) error {
	if hard(err) != nil {
		return nil
	}
	return err
}

func hard(err error) error {
	var identity *peer.IdentityError
	if errors.As(err, &identity) {
		return err
	}
	return nil
}

// question is the question about a head's owner.
func (a *asking) question(seen durable.Head) peer.Ask {
	a.mu.Lock()
	defer a.mu.Unlock()
	return peer.Ask{Namespace: a.l.record.Namespace, Identity: a.l.record.Identity, Owner: *seen.Owner, Wait: fetchWait}
}

// await waits until the snapshot of a claim has come, or has not. One that is under way goes on when ctx ends.
func (a *asking) await(ctx context.Context, ask peer.Ask) (why, err error) {
	a.mu.Lock()
	if r := a.l.record.Received; r != nil && r.Claim == ask.Owner.Claim && a.l.reception == nil {
		a.mu.Unlock()
		return nil, nil
	}
	p := a.l.reception
	if p == nil && a.l.noRoomFor == ask.Owner.Claim && time.Now().Before(a.l.noRoomUntil) {
		a.mu.Unlock()
		return errNoRoom, nil // it is not asked for, so that its node uploads it
	}
	if p == nil {
		p = a.receiveLocked(ask)
	}
	a.mu.Unlock()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	if deadline, ok := ctx.Deadline(); ok {
		timer.Reset(time.Until(deadline) - yieldTime)
	}
	select {
	case <-p.done:
	case <-timer.C:
	case <-ctx.Done():
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	select {
	case <-p.done:
		if a.l.reception == p {
			a.l.reception = nil
		}
		return soft(p.err), hard(p.err)
	default:
	}
	if p.all > 0 {
		return fmt.Errorf("its snapshot comes from there: %d of %d MiB", p.got>>20, p.all>>20), nil
	}
	return errors.New("it is awaited that it sleeps there"), nil
}

// receiveLocked begins to receive what a claim's owner has.
func (a *asking) receiveLocked(ask peer.Ask) *reception {
	u, l := a.Uploader, a.l
	ctx, cancel := context.WithCancel(u.end)
	p := &reception{claim: ask.Owner.Claim, done: make(chan struct{}), cancelled: cancel}
	l.reception = p
	head := ask.Owner
	u.receiving.Go(func() {
		defer cancel()
		defer close(p.done)
		err := u.receive(ctx, l, p, ask, head)
		u.mu.Lock()
		p.err = err
		u.mu.Unlock()
	})
	return p
}

// receive brings it, and notes that it is there. It counts for nothing yet.
func (u *Uploader) receive(ctx context.Context, l *lineage, p *reception, ask peer.Ask, owner durable.Owner) error {
	begun := time.Now()
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	if r.Received != nil && r.Received.Counts {
		return fmt.Errorf("%w: an earlier one is not taken in yet", peer.ErrUnavailable)
	}
	if r.Received != nil {
		if err := u.keepRecord(l, func(r *record) { r.Received = nil }); err != nil {
			return err
		}
	}
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	looked := false
	s, err := u.opts.Peers.Fetch(ctx, ask, u.receivedDir(r.Name), func(done, all int64) {
		u.mu.Lock()
		p.got, p.all = done, all
		u.mu.Unlock()
		if !looked { // its size is known from here on
			looked = true
			if err := u.opts.Room(all - done); err != nil {
				stop(fmt.Errorf("%w: %w", peer.ErrUnavailable, err))
			}
		}
	})
	if full := context.Cause(ctx); errors.Is(full, peer.ErrUnavailable) {
		err = full
		u.removeReceived(r.Name)
		u.mu.Lock()
		l.noRoomFor, l.noRoomUntil = owner.Claim, time.Now().Add(noRoomFor)
		u.mu.Unlock()
	}
	if err != nil {
		if !errors.Is(err, peer.ErrRuns) {
			u.opts.Log.Warn("a snapshot was not received from its node: the store is the way", "workload", r.Namespace+"/"+r.Identity, "node", owner.Node, "error", err)
		}
		return err
	}
	m := s.Manifest()
	u.opts.Log.Info("a snapshot was received from its node", "workload", r.Namespace+"/"+r.Identity, "node", owner.Node, "sequence", m.Sequence, "epoch", m.Epoch,
		"bytes", s.Size(), "ms", time.Since(begun).Milliseconds())
	return u.keepRecord(l, func(r *record) {
		r.Received = &received{From: owner.Node, Claim: owner.Claim, Sequence: m.Sequence, Epoch: m.Epoch}
	})
}

// dropReceived forgets one that doesn't count.
func (a *asking) dropReceived(was *received) {
	if was.Counts {
		return
	}
	if err := a.keep(func(r *record) { r.Received = nil }); err != nil {
		a.opts.Log.Warn("what another node has sent", "error", err)
	}
}

// removeReceived removes the files of what no record names any more.
func (u *Uploader) removeReceived(name string) {
	if err := os.RemoveAll(u.receivedDir(name)); err != nil {
		u.opts.Log.Warn("what another node has sent could not be removed", "error", err)
	}
}

// unwantedAfter is how long one is kept that nobody has claimed.
const unwantedAfter = 10 * time.Minute

// dropUnwanted forgets what was received for somebody who has not come back for it.
func (u *Uploader) dropUnwanted() {
	u.mu.Lock()
	var some []*lineage
	for _, l := range u.lineages {
		if r := l.record; r.Received != nil && !r.Received.Counts && !r.Claiming && l.reception == nil {
			some = append(some, l)
		}
	}
	u.mu.Unlock()
	for _, l := range some {
		st, err := os.Stat(filepath.Join(u.receivedDir(l.record.Name), "manifest.json"))
		if err == nil && time.Since(st.ModTime()) < unwantedAfter {
			continue
		}
		select {
		case l.turn <- struct{}{}: // else somebody is about to claim it
			a := &asking{Uploader: u, l: l}
			u.mu.Lock()
			r := l.record
			u.mu.Unlock()
			if r.Received != nil && !r.Claiming {
				a.dropReceived(r.Received)
			}
			l.give()
		default:
		}
	}
}

// told tells the former owner, which needn't be waited for.
func (a *asking) told(seen durable.Head) {
	ask := a.question(seen)
	a.receiving.Go(func() {
		ctx, cancel := context.WithTimeout(a.end, tellLimit)
		defer cancel()
		if err := a.opts.Peers.Taken(ctx, ask); err != nil {
			a.opts.Log.Debug("the former owner of a workload was not told", "error", err)
		}
	})
}

// takeIn has the workload's directory have what another node has sent, once it counts. The shim that has the directory does it itself, when it is
// told with its right. It is tried again until it is done, and then uploaded as this node's own.
func (u *Uploader) takeIn(ctx context.Context, l *lineage) {
	again, err := u.takeInNow(ctx, l)
	u.mu.Lock()
	defer u.mu.Unlock()
	l.takeInAt = time.Time{}
	if again || err != nil {
		l.takeInFailures++
		l.takeInAt = time.Now().Add(min(u.pauseAfter(l.takeInFailures), time.Second))
	} else {
		l.takeInFailures = 0
	}
	if err != nil && l.takeInFailures == 1 {
		u.opts.Log.Warn("what another node has sent could not be taken in: it is tried again", "name", l.record.Name, "error", err)
	}
}

func (u *Uploader) takeInNow(ctx context.Context, l *lineage) (again bool, err error) {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	got, dir := r.Received, u.dirOf(r)
	if got == nil || !got.Counts {
		return false, nil
	}
	if !u.hasTakenIn(dir, got) {
		if held, err := snapshot.Held(dir); held || err != nil {
			return true, err
		}
		err := u.takeInHere(ctx, l, r)
		if errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, errNotThere) {
			return false, u.loseReceived(l, err)
		}
		if err != nil {
			return true, err
		}
	}
	if err := u.keepRecord(l, func(r *record) { r.Received = nil }); err != nil {
		return true, err
	}
	u.look(dir, Wishes{})
	return false, nil
}

// hasTakenIn is true when a workload's directory has it, or came after it.
func (u *Uploader) hasTakenIn(dir string, got *received) bool {
	head, err := snapshot.ReadHead(dir)
	return err == nil && head.Sequence >= got.Sequence && head.Epoch >= got.Epoch && got.in(head.Sequence, u.epochOrHead(dir, head))
}

// epochOrHead of the newest snapshot in a directory.
func (u *Uploader) epochOrHead(dir string, head snapshot.Head) uint64 {
	if e := u.epochOf(dir, head.Sequence); e != noEpoch {
		return e
	}
	if found, err := snapshot.Inspect(dir); err == nil && found.Kept != nil && found.Kept.Sequence() == head.Sequence {
		return found.Kept.Manifest().Epoch
	}
	return head.Epoch
}

// takeInHere does it for a workload that no shim has. Nobody begins to run it meanwhile.
func (u *Uploader) takeInHere(ctx context.Context, l *lineage, r record) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	s, err := snapshot.OpenReceived(u.receivedDir(r.Name))
	if err != nil {
		return err
	}
	local, err := snapshot.OpenLocal(u.dirOf(r), snapshot.WithOwner(r.Namespace, r.ID, r.Identity))
	if err != nil {
		return err
	}
	local.Under(r.Epoch, 0)
	_, err = local.Receive(ctx, s)
	return errors.Join(err, local.Close())
}

// loseReceived has one that can't be read any more be told, and what the store has be older than the workload, unless that is the same.
func (u *Uploader) loseReceived(l *lineage, why error) error {
	u.opts.Log.Error("a snapshot that another node has sent is damaged: that node has it still", "name", l.record.Name, "error", why)
	return u.keepRecord(l, func(r *record) {
		got := r.Received
		if r.Received = nil; got == nil || len(r.Has) > 0 && got.in(r.Has[0].Sequence, r.Has[0].Epoch) && got.Sequence == r.Has[0].Sequence {
			return
		}
		r.Since = r.Epoch
		if r.Answer != nil {
			r.Answer = &answer{Was: r.Answer.Was, Former: r.Answer.Former}
		}
	})
}

// clearReceived removes what no record names any more.
func (u *Uploader) clearReceived() {
	parent := filepath.Dir(u.receivedDir("x"))
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	u.mu.Lock()
	wanted := make(map[string]bool)
	for _, l := range u.lineages {
		if r := l.record; r.Received != nil && (r.Received.Counts || r.Claiming) { // one that is being claimed may come to count
			wanted[filepath.Base(u.receivedDir(l.record.Name))] = true
		}
	}
	u.mu.Unlock()
	for _, e := range entries {
		if !wanted[e.Name()] {
			_ = os.RemoveAll(filepath.Join(parent, e.Name()))
		}
	}
}

// handedOver is true of a claim over the one that was handed over, or over this node's own that has followed that, whose answer was lost.
func (r *record) handedOver(mine bool, before, now durable.Head) bool {
	if mine && r.follows(before.Epoch) {
		got := *r.Received
		got.Head = before.Epoch
		r.Received = &got
	}
	return before.Owner != nil && r.follows(now.Epoch)
}

// follows is true of an epoch that is the next after that of the claim which was handed over: nobody came between.
func (r *record) follows(epoch uint64) bool {
	return r.Received != nil && r.Received.Head != 0 && epoch == r.Received.Head+1
}

// countReceived says whether what was received is what the workload is, now that this node has it: the claim was handed over with it, or the store has
// it as the newest.
func (r *record) countReceived(now durable.Head) {
	got := r.Received
	if got == nil {
		return
	}
	fresh := *got
	if g, ok := now.Newest(); r.follows(now.Epoch) || ok && g.Sequence == got.Sequence && g.Epoch == got.Epoch {
		fresh.Counts, fresh.Whole = true, r.follows(now.Epoch)
		r.Received = &fresh
	} else {
		r.Received = nil
	}
}
