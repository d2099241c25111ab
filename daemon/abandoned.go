package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/api/rights"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

// abandoned ends what shims have left of workloads with an identity, once that may not run here any more. A shim that works does so itself, and of one that died
// containerd has everything taken down; where that is dead, too, or the shim is there and does nothing, nobody else is there.
type abandoned struct {
	runDir string
	// reap takes down what the shim of a record that died has left, as containerd would. It may be called again.
	reap func(context.Context, handover.Record) error
	// answers is nil when the shim of a record works.
	answers func(context.Context, handover.Record) error
	log     *slog.Logger

	mu   sync.Mutex      // guards told, and has one caller at work at a time
	told map[string]bool // of those that could not be taken down
}

const (
	abandonedLook = time.Second            // between looks, at most
	abandonedWait = 100 * time.Millisecond // after the lease's end, in which shims end their workloads
	reapTimeout   = 10 * time.Second
	answerTimeout = 300 * time.Millisecond
)

// run ends them all when the node's lease is over, until ctx ends.
func (a *abandoned) run(ctx context.Context) {
	for wait := time.Duration(0); ; {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		wait = abandonedLook
		if left, ok := leaseLeft(a.runDir); ok && left > 0 {
			wait = min(wait, left+abandonedWait) // which is not long before another node may take over
		} else if ok {
			_, _ = a.end(ctx, func(handover.Record) bool { return true })
		}
	}
}

// leaseLeft is how long the node's lease still lasts; ok is false when it had none in this boot.
func leaseLeft(runDir string) (left time.Duration, ok bool) {
	l, err := rights.ReadLease(runDir)
	return l.End - rights.SinceBoot(), err == nil
}

// end takes down what dead shims have left of some workloads with an identity, and the sandboxes of those that do nothing. It says how many of both there
// were.
func (a *abandoned) end(ctx context.Context, of func(handover.Record) bool) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	records, err := handover.ListRecords(a.runDir)
	var hung sync.WaitGroup
	for _, r := range records {
		switch {
		case r.Identity == "" || !of(r):
		case r.Alive():
			hung.Go(func() { a.endHung(ctx, r) })
		default:
			n++
			err = errors.Join(err, a.endDead(ctx, r))
		}
	}
	hung.Wait()
	return n, err
}

func (a *abandoned) endDead(ctx context.Context, r handover.Record) error {
	ctx, cancel := context.WithTimeout(ctx, reapTimeout)
	defer cancel()
	err := a.reap(ctx, r)
	log := a.log.With("workload", r.Namespace+"/"+r.Identity, "id", r.ID)
	switch {
	case err == nil:
		delete(a.told, r.Bundle)
		log.Warn("a shim had died, and nobody has taken down what it left, which may not run here any more: that is ended")
	case !a.told[r.Bundle]:
		a.told[r.Bundle] = true
		log.Error("what a shim that died has left may not run here any more, and can't be ended: it is tried again", "error", err)
	}
	return err
}

// endHung kills the sandboxes of a shim that is stopped, or hangs. They are its children, so no other process can be meant.
func (a *abandoned) endHung(ctx context.Context, r handover.Record) {
	sandboxes := sandboxesOf(r.Pid)
	if len(sandboxes) == 0 {
		return // it sleeps
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	if a.answers(ctx, r) == nil {
		return // it ends it itself
	}
	log := a.log.With("workload", r.Namespace+"/"+r.Identity, "id", r.ID, "shim", r.Pid)
	for _, pid := range sandboxes {
		if err := killChild(pid, r.Pid); err != nil {
			log.Error("a shim does nothing, and its sandbox may not run here any more, and can't be killed: it is tried again", "sandbox", pid, "error", err)
			continue
		}
		log.Warn("a shim does nothing, and its sandbox may not run here any more: that is killed", "sandbox", pid)
	}
}

// answers asks a shim for its state, over a connection of its own. An error of the shim's is an answer, too.
func answers(ctx context.Context, r handover.Record) error {
	c := shimclient.New(r.Address)
	defer c.Close()
	_, err := c.Activity(ctx)
	if err != nil && (ctx.Err() != nil || errors.Is(err, shimclient.ErrUnreachable)) {
		return err
	}
	return nil
}
