package leftover

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Collector removes leftovers whose container has been gone for a while. It keeps nothing on the disk: each one counts
// anew, which can only keep a snapshot longer.
type Collector struct {
	DataDir, RunDir string
	// After is how long containerd must have said that the container is gone; 0 removes nothing.
	After time.Duration
	// Every is the time between two looks. Default a minute.
	Every time.Duration
	Log   *slog.Logger

	seen map[string]sight // by directory
}

// sight is what is known of a leftover since an earlier look.
type sight struct {
	head snapshot.Head
	fate Fate
	gone time.Time // since when, as far as it was seen
}

// Run looks until ctx ends.
func (c *Collector) Run(ctx context.Context) {
	every := c.Every
	if every <= 0 {
		every = time.Minute
	}
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		c.look(ctx, time.Now())
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// look takes one look at all leftovers.
func (c *Collector) look(ctx context.Context, now time.Time) {
	left, err := Find(c.DataDir, c.RunDir)
	if err != nil {
		c.Log.Warn("snapshots that no shim looks after were not looked for", "error", err)
		return
	}
	seen := make(map[string]sight)
	for _, l := range left {
		if ctx.Err() != nil {
			return
		}
		if s, there := c.judge(ctx, l, now); there {
			seen[l.Dir] = s
		}
	}
	c.seen = seen
}

// judge asks for one leftover's fate, tells of a new one, and removes what has been gone for long enough.
func (c *Collector) judge(ctx context.Context, l Leftover, now time.Time) (s sight, there bool) {
	before, known := c.seen[l.Dir]
	known = known && before.head.Time.Equal(l.Head.Time) && before.head.Sequence == l.Head.Sequence
	fate, err := Ask(ctx, l)
	s = sight{head: l.Head, fate: fate, gone: now}
	if known && before.fate == Gone && fate == Gone {
		s.gone = before.gone
	}
	log := c.Log.With("workload", l.Name(), "dir", l.Dir, "state", string(l.Head.State), "bytes", l.Bytes)
	if !known || before.fate != fate {
		c.tell(log, l, fate, err)
	}
	if fate != Gone || c.After <= 0 || l.Quarantined > 0 || now.Sub(s.gone) < c.After {
		return s, true
	}
	if err := Remove(ctx, l, false); err != nil {
		if !errors.Is(err, ErrBusy) {
			log.Warn("a snapshot whose container is gone could not be removed", "error", err)
		}
		return s, true
	}
	log.Warn("a snapshot whose container is gone was removed", "gone_for", now.Sub(s.gone).Round(time.Second).String())
	return s, false
}

func (c *Collector) tell(log *slog.Logger, l Leftover, fate Fate, err error) {
	switch {
	case fate == Exists:
		log.Info("no shim looks after a snapshot: it waits for its container to be started again")
	case fate == Unknown:
		log.Info("no shim looks after a snapshot, and it is kept: nobody knows of its container", "reason", err)
	case l.Quarantined > 0:
		log.Warn("the container of a snapshot is gone; it is kept, since something is in its quarantine: see hibernatectl orphans")
	case c.After <= 0:
		log.Warn("the container of a snapshot is gone; it is kept: see hibernatectl orphans")
	default:
		log.Warn("the container of a snapshot is gone: it will be removed", "in", c.After.String())
	}
}
