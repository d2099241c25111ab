// Package keeper carries out the idle policy: it samples each workload, asks daemon/idle what that means, and has the
// shim hibernate what is idle.
//
// Follow is a role of daemon/node: one goroutine for each workload, so a shim that hangs delays only its own. What is
// known about a workload is told by Judgement, without calling anybody.
package keeper

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Options of a Keeper. The zero value of a field means its default.
type Options struct {
	Policy idle.Policy
	// Concurrent hibernations at most. Default: one for each core.
	Concurrent int
	// SampleTimeout bounds one question to a shim. Default 2 s.
	SampleTimeout time.Duration
	// HibernateTimeout bounds one hibernation. Default 5 min.
	HibernateTimeout time.Duration
	// SlotTimeout is how long a hibernation counts as one of the concurrent ones, so that shims that hang can't keep
	// the others from sleeping. Default 30 s.
	SlotTimeout time.Duration
	// AsleepEvery is the time between samples of a workload that is not awake; its wake is told by the shim. Default 30 s.
	AsleepEvery time.Duration
	// Refused is told of each of our requests that did not end in sleep: refused, aborted or failed.
	Refused func(outcome string)
	// Observed is told each time that a workload in mode observe would have been put to sleep, and what memory that would have
	// freed.
	Observed func(namespace string, bytes uint64)
	// RoomMade is told how each hibernation for another's sake ended: slept, refused, aborted, failed or ended.
	RoomMade func(outcome string)
	// Frozen tells why a workload is to stay awake for now, whatever its settings; "" when it is not. Default: none is.
	Frozen func(node.Key) string
	// AlarmAfter is how long a workload's activity must not be measurable before that is an alarm. Default 30 s.
	AlarmAfter time.Duration
	Log        *slog.Logger
}

func (o Options) withDefaults() Options {
	for field, value := range map[*time.Duration]time.Duration{
		&o.SampleTimeout:    2 * time.Second,
		&o.HibernateTimeout: 5 * time.Minute,
		&o.SlotTimeout:      30 * time.Second,
		&o.AsleepEvery:      30 * time.Second,
		&o.AlarmAfter:       30 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	if o.Concurrent <= 0 {
		o.Concurrent = runtime.GOMAXPROCS(0)
	}
	if o.Refused == nil {
		o.Refused = func(string) {}
	}
	if o.Observed == nil {
		o.Observed = func(string, uint64) {}
	}
	if o.Frozen == nil {
		o.Frozen = func(node.Key) string { return "" }
	}
	if o.RoomMade == nil {
		o.RoomMade = func(string) {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Keeper follows the workloads of a node.
type Keeper struct {
	opts  Options
	slots *semaphore.Weighted

	mu         sync.Mutex
	judgements map[*node.Workload]Judgement // guarded by mu
	spared     map[*node.Workload]time.Time // guarded by mu; until when it is not asked to make room
	broken     map[*node.Workload]string    // guarded by mu; why its activity can't be measured
}

// Judgement is the newest decision about a workload and what it was made from.
type Judgement struct {
	idle.Decision
	Sample  idle.Sample
	Memory  uint64 // bytes the workload's sandbox uses
	At      time.Time
	Waiting bool // for its turn to hibernate
}

// New returns a keeper that follows nothing yet.
func New(opts Options) *Keeper {
	opts = opts.withDefaults()
	return &Keeper{
		opts:       opts,
		slots:      semaphore.NewWeighted(int64(opts.Concurrent)),
		judgements: make(map[*node.Workload]Judgement),
		spared:     make(map[*node.Workload]time.Time),
		broken:     make(map[*node.Workload]string),
	}
}

// Judgement tells what is known about a followed workload; ok is false before its first sample.
func (k *Keeper) Judgement(w *node.Workload) (j Judgement, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	j, ok = k.judgements[w]
	return j, ok
}

func (k *Keeper) update(w *node.Workload, change func(*Judgement)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	j := k.judgements[w]
	change(&j)
	k.judgements[w] = j
}

func (k *Keeper) forget(w *node.Workload) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.judgements, w)
	delete(k.spared, w)
	delete(k.broken, w)
}

// Follow keeps one workload until ctx ends.
func (k *Keeper) Follow(ctx context.Context, w *node.Workload) {
	defer k.forget(w)
	f := &follower{
		Keeper: k, w: w, tracker: idle.NewTracker(k.opts.Policy),
		log: k.opts.Log.With("namespace", w.Namespace, "id", w.ID),
	}
	first := time.Duration(rand.Int64N(int64(250 * time.Millisecond))) // not all in the same moment
	for pause(ctx, first, nil) {
		changed := w.Changed()
		next := f.step(ctx)
		if !pause(ctx, next, changed) {
			return
		}
		first = 0
	}
}

// pause waits for d, or for a change; it reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration, changed <-chan struct{}) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
