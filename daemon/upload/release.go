package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// grant notes that a shim may run the workload from now on: it is not given away before a snapshot is there that was made after it. The note
// needn't outlive the machine, where nothing runs any more then.
func (u *Uploader) grant(l *lineage, local Local) error {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	above := max(local.Sequence, r.Sequence)
	if head, err := snapshot.ReadHead(u.dirOf(r)); err == nil {
		above = max(above, head.Sequence)
	}
	text := strconv.FormatUint(above, 10)
	if err := atomicfile.Write(u.grantPath(r.Name), []byte(text), 0o600, atomicfile.Options{}); err != nil {
		return fmt.Errorf("note who may run: %w", err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	l.granted, l.grant, l.unused = &above, local.Grant, false
	return nil
}

// ungrant takes back what was granted last, by its name, since nothing has run. The turn is held.
func (u *Uploader) ungrant(l *lineage, grant string) error {
	u.mu.Lock()
	mine, name := l.grant == grant, l.record.Name
	u.mu.Unlock()
	if !mine {
		return nil
	}
	if err := os.Remove(u.grantPath(name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("note who may run: %w", err)
	}
	u.mu.Lock()
	l.granted, l.grant, l.unused = nil, "", true
	l.restAt = time.Now()
	u.mu.Unlock()
	u.wake()
	return nil
}

func (u *Uploader) grantPath(name string) string {
	return strings.TrimSuffix(u.recordPath(name), ".json") + ".granted"
}

// readGrant gives nil for a workload that was never granted. A note that can't be read is one of which nothing is known.
func (u *Uploader) readGrant(name string) *uint64 {
	text, err := os.ReadFile(u.grantPath(name))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	n, perr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	if err != nil || perr != nil {
		n = ^uint64(0)
	}
	return &n
}

// rest is what a workload does that may be given away.
type rest int

const (
	runs   rest = iota // or may run
	sleeps             // the newest generation in the store is all of it
	ended              // nothing of it is there, and it ran after the newest generation
	unused             // nothing has run since it was claimed
)

// release gives a claim away, if the workload rests.
func (u *Uploader) release(ctx context.Context, l *lineage) {
	ctx, cancel := context.WithTimeout(ctx, u.opts.releaseWithin)
	defer cancel()
	err := u.releaseNow(ctx, l)
	u.mu.Lock()
	l.restAt = time.Time{}
	if err != nil {
		l.restAt = time.Now().Add(u.pauseAfter(l.restFailures + 1))
		l.restFailures++
	} else {
		l.restFailures = 0
	}
	first := err != nil && l.restFailures == 1
	name := l.record.Name
	u.mu.Unlock()
	if first {
		u.opts.Log.Warn("a workload that rests could not be given up for other nodes: it is tried again", "name", name, "error", err)
	}
}

func (u *Uploader) releaseNow(ctx context.Context, l *lineage) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	if !r.claims() || r.Unconfirmed || r.Received != nil && r.Received.Counts {
		return nil
	}
	what, err := u.rests(ctx, l)
	if what == runs || err != nil {
		return err
	}
	tier, err := u.rightsOf(l)
	if err != nil {
		return err
	}
	if err := u.keepRecord(l, func(r *record) { r.Releasing = true }); err != nil {
		return err
	}
	whole := what == sleeps || what == unused && r.Answer != nil && r.Answer.Whole && (!u.idle(l) || r.Answer.Was == u.localState(l))
	head, err := tier.GiveUp(ctx, r.Claim, r.Epoch, whole)
	if errors.Is(err, durable.ErrFenced) || errors.Is(err, durable.ErrDestroyed) || errors.Is(err, durable.ErrNone) {
		return u.lost(l, head)
	}
	if err != nil {
		return err
	}
	u.opts.Log.Info("a workload is given up: any node may run it", "workload", r.Namespace+"/"+r.Identity, "sleeps", whole, "epoch", r.Epoch)
	u.opts.Meter.Released()
	return u.keepRecord(l, func(r *record) { r.Releasing, r.Released = false, true })
}

// idle is true when a shim has said that nothing ran.
func (u *Uploader) idle(l *lineage) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return l.unused
}

// errLeft: a shim has died, and what it has made is not taken down yet.
var errLeft = errors.New("what its shim has left is still there: containerd takes it down")

// rests judges a workload whose turn is held, so that nothing is granted meanwhile.
func (u *Uploader) rests(ctx context.Context, l *lineage) (rest, error) {
	u.mu.Lock()
	r, granted, idle := l.record, l.granted, l.unused
	dir := u.dirOf(r)
	u.mu.Unlock()
	held, err := snapshot.Held(dir)
	if err != nil {
		return runs, err
	}
	head, err := snapshot.ReadHead(dir)
	switch {
	case idle && (isNoHead(err) || err == nil && head.State != snapshot.Asleep):
		return unused, nil
	case isNoHead(err) && !held:
		return ended, nil
	case isNoHead(err):
		return runs, nil
	case err != nil:
		return runs, err
	}
	state := ""
	if u.opts.Shims != nil {
		if state, err = u.opts.Shims.State(ctx, r.Namespace, r.Identity); err != nil {
			return runs, err
		}
	}
	if head.State == snapshot.Awake && !held && state == "" && u.opts.Shims != nil { // its shim has died
		switch left, err := u.opts.Shims.Recorded(r.Namespace, r.Identity); {
		case err != nil:
			return runs, err
		case left:
			return runs, errLeft
		}
		return ended, nil
	}
	switch {
	case head.State == snapshot.Ended && (!held || state == "ended"):
		return ended, nil
	case head.State != snapshot.Asleep:
		return runs, nil
	case held && (state != "asleep" && state != "ended" && !(idle && state == "blocked") || granted != nil && head.Sequence <= *granted):
		return runs, nil
	}
	switch mine := (Has{head.Sequence, u.epochOf(dir, head.Sequence)}); {
	case mine.Epoch != noEpoch && mine.Epoch >= r.Since && len(r.Has) > 0 && r.Has[0] == mine:
		return sleeps, nil
	case mine.Epoch != noEpoch && mine.Epoch >= r.Since || held && !idle:
		return runs, nil // it is not in the store yet; or is going to be restored
	}
	return unused, nil // what the node has is older than another node's
}

// noEpoch is none that anything has.
const noEpoch = ^uint64(0)

// epochOf a snapshot of the node's; noEpoch where it can't be read.
func (u *Uploader) epochOf(dir string, sequence uint64) uint64 {
	found, err := snapshot.Inspect(dir)
	if err != nil || found.Snapshot == nil || found.Snapshot.Sequence() != sequence {
		return noEpoch
	}
	return found.Snapshot.Manifest().Epoch
}

// lost notes that a claim is over without this node's doing, and has whatever runs here end. The turn is held.
func (u *Uploader) lost(l *lineage, head durable.Head) error {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	if r.Yielded != nil { // nothing has run here since
		return u.handedOver(l, head)
	}
	who := head.Last
	if head.Owner != nil {
		who = head.Owner.Node
	}
	reason := fmt.Sprintf("this node's claim, of epoch %d, is over: the store has epoch %d, of node %s", r.Epoch, head.Epoch, who)
	err := u.keepRecord(l, func(r *record) {
		r.forgetClaim()
		r.Overtaken = reason
	})
	u.mu.Lock()
	l.claimed, l.tier = false, nil
	l.stopAt = time.Now()
	u.mu.Unlock()
	u.opts.Meter.Fenced()
	u.opts.Log.Error("another node has overtaken a workload of this one: what runs of it here is ended", "workload", r.Namespace+"/"+r.Identity, "id", r.ID, "reason", reason)
	u.wake()
	return err
}

// stop has the shims end what runs without a right any more.
func (u *Uploader) stop(ctx context.Context, l *lineage) {
	u.mu.Lock()
	r := l.record
	u.mu.Unlock()
	var err error
	if u.opts.Shims != nil {
		ctx, cancel := context.WithTimeout(ctx, stopLimit)
		defer cancel()
		var found, held bool
		found, err = u.opts.Shims.Fence(ctx, r.Namespace, r.Identity, r.Epoch, r.Overtaken)
		if err == nil && !found {
			if held, err = snapshot.Held(u.dirOf(r)); held && err == nil {
				err = errors.New("its shim has not told yet who it is")
			}
		}
	}
	if err == nil {
		err = u.keepRecord(l, func(r *record) { r.Overtaken = "" })
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	l.stopAt = time.Time{}
	if err != nil {
		l.stopFailures++
		l.stopAt = time.Now().Add(u.pauseAfter(l.stopFailures))
		u.opts.Log.Error("a copy that may not run any more could not be ended: it is tried again", "workload", r.Namespace+"/"+r.Identity, "error", err)
	} else {
		l.stopFailures = 0
	}
}

// stopLimit bounds the end of a copy.
const stopLimit = 30 * time.Second

// TermChanged has all claims be confirmed that an earlier term has made.
func (u *Uploader) TermChanged() {
	u.mu.Lock()
	for _, l := range u.lineages {
		if l.record.Identity != "" {
			l.confirmNext = time.Time{}
		}
	}
	u.mu.Unlock()
	u.wake()
}

// unconfirmed is true of a claim that the store must be asked about.
func (l *lineage) unconfirmed(term string) bool {
	r := &l.record
	return r.Identity != "" && (r.Claim != "" && (r.Unconfirmed || !r.Released && r.Term != term) || r.Claiming && !r.claims())
}

// mostUnconfirmed is between two questions about a workload that runs though nobody could be asked.
const mostUnconfirmed = 5 * time.Second

// lateWrite is how long a write whose answer didn't come may still be under way to the store.
const lateWrite = time.Minute

// confirm asks the store whether a claim of an earlier term still holds.
func (u *Uploader) confirm(ctx context.Context, l *lineage) {
	ctx, cancel := context.WithTimeout(ctx, claimLimit)
	defer cancel()
	err := u.confirmNow(ctx, l)
	u.mu.Lock()
	defer u.mu.Unlock()
	if err != nil {
		u.opts.Log.Debug("a claim could not be confirmed: it is tried again", "name", l.record.Name, "error", err)
		l.confirmFailures++
		wait := u.pauseAfter(l.confirmFailures)
		if l.record.Unconfirmed { // another node may run it, too
			wait = min(wait, mostUnconfirmed)
		}
		l.confirmNext = time.Now().Add(wait)
		return
	}
	l.confirmFailures = 0
}

func (u *Uploader) confirmNow(ctx context.Context, l *lineage) error {
	if err := l.take(ctx); err != nil {
		return err
	}
	defer l.give()
	term, ok := u.opts.Fence.Term()
	u.mu.Lock()
	needed := l.unconfirmed(term)
	r := l.record
	local := Local{Sequence: l.local}
	u.mu.Unlock()
	if !ok || !needed {
		return nil
	}
	if epoch := u.epochOf(u.dirOf(r), local.Sequence); epoch != noEpoch {
		local.Epoch = epoch
	}
	tier, err := u.rightsOf(l)
	if err != nil {
		return err
	}
	a := &asking{Uploader: u, l: l, local: local, was: u.localState(l)}
	if done, err := a.confirm(ctx, tier, term); done || err != nil {
		return err
	}
	seen, err := tier.Look(ctx)
	switch {
	case err != nil && !errors.Is(err, durable.ErrDestroyed):
		return err
	case err == nil && tier.Mine(seen.Head): // a claim that a daemon could not write down any more
		return u.keepRecord(l, func(r *record) { r.adopt(seen.Head) })
	case err == nil && r.Unconfirmed && r.Claiming && !r.claims() && seen.Epoch > r.Epoch: // it runs without a right, whatever becomes of what was begun
		return errors.Join(u.lost(l, seen.Head), u.keepRecord(l, func(r *record) { r.Claiming = true }))
	case r.Claiming && !r.claims():
		return u.forgetClaiming(l)
	case err == nil && seen.Epoch == r.Epoch && seen.Owner == nil && r.Unconfirmed: // nobody came between
		_, err = a.acquire(ctx, tier, term)
		return err
	case err == nil && seen.Epoch == r.Epoch && seen.Owner == nil: // a release came through after all
		return u.keepRecord(l, func(r *record) { r.Releasing, r.Released = false, true })
	}
	return u.lost(l, seen.Head)
}

// adopt takes up a claim of this node's that was found in the store. It is of no term, and so is confirmed next.
func (r *record) adopt(head durable.Head) {
	since := r.Since
	if head.Epoch != r.Epoch+1 {
		since = head.Epoch
	}
	if r.follows(head.Epoch) {
		since = r.Received.Epoch
	}
	r.countReceived(head)
	r.forgetClaim()
	r.Claim, r.Epoch, r.Since = head.Owner.Claim, head.Epoch, since
	r.see(head)
}

// forgetClaiming forgets a claim that was begun and is not there, once it can't come any more.
func (u *Uploader) forgetClaiming(l *lineage) error {
	u.mu.Lock()
	left := lateWrite - time.Since(l.tried)
	l.confirmNext = time.Now().Add(left)
	u.mu.Unlock()
	if left > 0 {
		return nil
	}
	return u.keepRecord(l, func(r *record) { r.Claiming = false })
}
