package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/api/rights"
)

// abandoned ends what shims that have died have left of workloads with an identity, once that may not run here any more. A shim that lives
// does so itself, and of one that died containerd has everything taken down; where that is dead, too, nobody else is there.
type abandoned struct {
	runDir string
	// reap takes down what the shim of a record has left, as containerd would. It may be called again.
	reap func(context.Context, handover.Record) error
	log  *slog.Logger

	mu   sync.Mutex      // guards told, and has one caller at work at a time
	told map[string]bool // of those that could not be taken down
}

const (
	abandonedLook = time.Second
	reapTimeout   = 10 * time.Second
)

// run ends them all when the node's lease is over, until ctx ends.
func (a *abandoned) run(ctx context.Context) {
	tick := time.NewTicker(abandonedLook)
	defer tick.Stop()
	for {
		if leaseOver(a.runDir) {
			_, _ = a.end(ctx, func(handover.Record) bool { return true })
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// leaseOver is true when the node had a lease in this boot, and has none any more.
func leaseOver(runDir string) bool {
	l, err := rights.ReadLease(runDir)
	return err == nil && rights.SinceBoot() >= l.End
}

// end takes down what dead shims have left of some workloads with an identity, and says how many there were.
func (a *abandoned) end(ctx context.Context, of func(handover.Record) bool) (n int, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	records, err := handover.ListRecords(a.runDir)
	for _, r := range records {
		if r.Identity == "" || r.Alive() || !of(r) {
			continue
		}
		n++
		ctx, cancel := context.WithTimeout(ctx, reapTimeout)
		rerr := a.reap(ctx, r)
		cancel()
		log := a.log.With("workload", r.Namespace+"/"+r.Identity, "id", r.ID)
		switch {
		case rerr == nil:
			delete(a.told, r.Bundle)
			log.Warn("a shim had died, and nobody has taken down what it left, which may not run here any more: that is ended")
		case !a.told[r.Bundle]:
			a.told[r.Bundle] = true
			log.Error("what a shim that died has left may not run here any more, and can't be ended: it is tried again", "error", rerr)
		}
		err = errors.Join(err, rerr)
	}
	return n, err
}
