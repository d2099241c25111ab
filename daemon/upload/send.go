package upload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// errNothing: the node has no snapshot of the lineage any more.
var errNothing = errors.New("there is no snapshot to upload")

// errDamaged: what the node has isn't what its manifest says.
var errDamaged = errors.New("the node's own snapshot is damaged, and the next one will be uploaded instead")

// upload is one try to bring the newest snapshot of a lineage into the store.
func (u *Uploader) upload(ctx context.Context, l *lineage) {
	began := time.Now()
	ctx = urgent(ctx, &l.hurry)
	result, err := u.send(ctx, l)
	took := time.Since(began)
	for _, cause := range []error{errReplaced, errYielded} {
		if err != nil && errors.Is(context.Cause(ctx), cause) {
			err = cause
		}
	}
	u.mu.Lock()
	r := l.record // a look may change whose it is
	u.mu.Unlock()
	log := u.opts.Log.With("workload", r.Namespace+"/"+r.ID, "name", r.Name)
	switch {
	case err == nil && result.Generation.Sequence == 0: // the store had it
	case err == nil:
		g := result.Generation
		u.opts.Meter.Uploaded("committed", g.Sent, g.Image, took)
		log.Info("uploaded", "sequence", g.Sequence, "sent", g.Sent, "image", g.Image, "full", result.Full, "ms", took.Milliseconds())
		if len(result.Damaged) > 0 {
			log.Warn("objects of an earlier snapshot are gone or wrong, and were uploaded anew: hibernatectl snapshots verify tells which of the others can be restored",
				"objects", len(result.Damaged), "first", result.Damaged[0])
		}
	case errors.Is(err, errYielded):
		u.opts.Meter.Uploaded("replaced", 0, 0, took)
		log.Info("an upload was put off", "reason", err)
	case err != nil && ctx.Err() != nil && !errors.Is(err, errReplaced):
		return
	case errors.Is(err, errNothing):
		log.Info("not uploaded", "reason", err)
	case errors.Is(err, errReplaced):
		u.opts.Meter.Uploaded("replaced", 0, 0, took)
		log.Info("an upload was given up", "reason", err)
	default:
		u.opts.Meter.Uploaded("failed", 0, 0, took)
	}
	u.settle(l, result.Generation, err)
}

// settle notes how a try ended.
func (u *Uploader) settle(l *lineage, g durable.Generation, err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	first := l.err == nil
	l.sending, l.moved, l.gaveUp = 0, 0, errors.Is(err, errReplaced)
	switch {
	case err == nil:
		l.failures, l.err, l.final = 0, nil, false
		if l.since = (time.Time{}); l.local > l.record.Sequence {
			l.since = time.Now() // another has come while this one was sent
		}
	case errors.Is(err, errNothing):
		l.since, l.err = time.Time{}, nil
	case errors.Is(err, errReplaced), errors.Is(err, errYielded):
		l.next = time.Time{}
	default:
		l.failures++
		if l.collectAt.IsZero() { // what it has uploaded nothing names
			l.collectAt = time.Now().Add(u.opts.Grace + time.Minute)
		}
		l.err, l.final = err, final(err)
		if l.record.Identity != "" && l.record.claims() && errors.Is(err, durable.ErrFenced) {
			l.final = false // it was claimed anew meanwhile, or that it wasn't is going to be found out
		}
		l.next = time.Now().Add(u.pauseAfter(l.failures))
		u.tellLocked(l, first)
	}
}

// tellLocked logs a failure: the first of a lineage, and all that won't be tried again.
func (u *Uploader) tellLocked(l *lineage, first bool) {
	log := u.opts.Log.With("workload", l.record.Namespace+"/"+l.record.ID, "name", l.record.Name, "error", l.err)
	switch {
	case l.final:
		log.Error("a snapshot can't be uploaded, and is not tried again: see docs/OPERATIONS.md")
	case first:
		log.Warn("a snapshot was not uploaded: it is tried again until it is", "in", time.Until(l.next).Round(time.Millisecond).String())
	default:
		log.Debug("a snapshot was not uploaded", "failures", l.failures)
	}
}

// send commits the newest snapshot of the node.
func (u *Uploader) send(ctx context.Context, l *lineage) (durable.Result, error) {
	u.mu.Lock()
	dir := u.dirOf(l.record)
	u.mu.Unlock()
	s, err := newest(dir)
	if err != nil {
		return durable.Result{}, err
	}
	if there, err := u.wanted(l, s); there || err != nil {
		return durable.Result{}, err
	}
	tier, err := u.claim(ctx, l)
	if err != nil {
		return durable.Result{}, err
	}
	// Under the claim that is committed under: a shim may have asked for another one meanwhile, over what another node has run. What the store
	// has is compared at the commit.
	if _, err := u.wanted(l, s); err != nil {
		return durable.Result{}, err
	}
	image, err := durable.FromSnapshot(s)
	var result durable.Result
	if err == nil {
		result, err = u.commit(ctx, l.record.Name, tier, image, durable.CommitOptions{Progress: func(p durable.Progress) {
			u.mu.Lock()
			l.moved = max(l.moved, p.Moved)
			u.mu.Unlock()
		}})
	}
	if err != nil {
		return result, u.explain(l, dir, s, err)
	}
	return result, u.committed(ctx, l, tier, result.Generation)
}

// wanted says whether a snapshot is there already; errNothing and ErrOvertaken when it isn't to be uploaded.
func (u *Uploader) wanted(l *lineage, s *snapshot.Snapshot) (there bool, err error) {
	m := s.Manifest()
	u.mu.Lock()
	defer u.mu.Unlock()
	l.sending = s.Sequence()
	r, here := l.record, l.record.Place == u.place
	switch {
	case m.Lineage != r.Lineage, s.Sequence() <= r.Handed:
		return false, errNothing // somebody else's, by the same name, or to be uploaded by another node
	case here && s.Sequence() <= r.Sequence:
		return true, nil
	case here && r.Identity != "" && m.Epoch < r.Since:
		return false, fmt.Errorf("%w: it is of epoch %d", ErrOvertaken, m.Epoch)
	}
	return false, nil
}

// newest is the node's snapshot of a workload, whatever the workload does.
func newest(dir string) (*snapshot.Snapshot, error) {
	found, err := snapshot.Inspect(dir)
	switch {
	case isNoHead(err):
		return nil, errNothing
	case err != nil:
		return nil, fmt.Errorf("read the snapshot: %w", err)
	case found.Snapshot != nil:
		return found.Snapshot, nil
	case found.Kept != nil && found.Head.State != snapshot.Ended:
		return found.Kept, nil
	case found.Problem != nil && !errors.Is(found.Problem, snapshot.ErrNone):
		return nil, fmt.Errorf("read the snapshot: %w", found.Problem)
	}
	return nil, errNothing
}

// explain tells a failure of the local files from one of the store.
func (u *Uploader) explain(l *lineage, dir string, s *snapshot.Snapshot, err error) error {
	if head, herr := snapshot.ReadHead(dir); herr == nil && head.Sequence > s.Sequence() && localFault(s, err) {
		return errReplaced // it was taken away before it was open
	}
	if localFault(s, err) {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	if errors.Is(err, durable.ErrFenced) {
		u.mu.Lock()
		l.claimed = false
		if l.record.Identity != "" { // it is found out whether another node has it, and what runs here is ended then
			l.record.Term, l.confirmNext = "", time.Time{}
		}
		u.mu.Unlock()
	}
	return err
}

// localFault is true of an error about a file of s.
func localFault(s *snapshot.Snapshot, err error) bool {
	c, ok := errors.AsType[*snapshot.CorruptError](err)
	if !ok {
		return errors.Is(err, errNotThere)
	}
	return c.File == "manifest.json" || slices.ContainsFunc(s.Manifest().Files, func(f snapshot.File) bool { return f.Name == c.File })
}

// committed writes down what the store has now, and sees to what it needn't keep.
func (u *Uploader) committed(ctx context.Context, l *lineage, tier *durable.Lineage, g durable.Generation) error {
	u.mu.Lock()
	l.record.Place, l.record.Sequence, l.record.Committed = u.place, g.Sequence, time.Now().UTC()
	l.record.Image, l.record.Sent, l.record.Gone = g.Image, g.Sent, time.Time{}
	keep := u.keepLocked(l)
	l.record.Has = append([]Has{{g.Sequence, g.Epoch}}, l.record.Has[:min(len(l.record.Has), hasKept-1)]...)
	u.mu.Unlock()
	u.saveNow(l.record.Name)
	soon := time.Now().Add(u.opts.Grace + time.Minute)
	if head, err := tier.Head(ctx); err == nil && len(head.Generations) > keep {
		soon = time.Now()
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.mayRestLocked(l)
	if l.collectAt.IsZero() || soon.Before(l.collectAt) {
		l.collectAt = soon
	}
	return nil
}
