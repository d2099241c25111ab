package keeper

import (
	"context"
	"slices"
	"sync"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// leastIdle is how long a workload must have been idle to be put to sleep for another's sake.
const leastIdle = time.Second

// Evictable is how much memory those take that may sleep by themselves, now or when they become idle.
func (k *Keeper) Evictable() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	var bytes uint64
	for _, j := range k.judgements {
		if j.Sample.State == idle.Awake && j.SleepsIn != idle.Never {
			bytes += j.Memory
		}
	}
	return bytes
}

// MakeRoom has those hibernate that are idle longest, until they give back so many bytes or no more can, and returns when
// that has ended. A workload's idle timeout doesn't matter for that; its min-awake does, as what makes room must not be woken
// and put to sleep in turns.
func (k *Keeper) MakeRoom(ctx context.Context, bytes uint64) {
	var all sync.WaitGroup
	defer all.Wait()
	for _, c := range k.candidates(time.Now(), bytes) {
		k.opts.Log.Info("hibernates to make room", "namespace", c.w.Namespace, "id", c.w.ID, "idle", c.idle.Round(time.Millisecond).String(),
			"memory", c.Memory, "wanting", bytes)
		all.Go(func() { k.evict(ctx, c) })
	}
}

// candidate is a workload that may be put to sleep for another's sake.
type candidate struct {
	w    *node.Workload
	idle time.Duration
	Judgement
}

// candidates are those idle longest that together have so many bytes.
func (k *Keeper) candidates(now time.Time, bytes uint64) []candidate {
	var all []candidate
	k.mu.Lock()
	for w, j := range k.judgements {
		c := candidate{w: w, idle: j.IdleFor + now.Sub(j.At), Judgement: j}
		if c.idle >= leastIdle && now.After(k.spared[w]) && w.State() == idle.Awake && j.mayMakeRoom(now) {
			all = append(all, c)
		}
	}
	k.mu.Unlock()
	slices.SortFunc(all, func(a, b candidate) int { return int(b.idle - a.idle) })
	var sum uint64
	for i, c := range all {
		if sum >= bytes {
			return all[:i]
		}
		sum += c.Memory
	}
	return all
}

// mayMakeRoom reports whether nothing but the idle timeout keeps it awake.
func (j Judgement) mayMakeRoom(now time.Time) bool {
	if j.Sample.State != idle.Awake || j.SleepsIn == idle.Never || now.Sub(j.Sample.StateSince) < j.Sample.MinAwake {
		return false
	}
	return !slices.ContainsFunc(j.Reasons, func(r idle.Reason) bool { return r.Code == idle.Refused || r.Code == idle.Failed })
}

// spareFor is how long a workload is left alone that would not sleep.
const spareFor = 10 * time.Second

func (k *Keeper) evict(ctx context.Context, c candidate) {
	if k.opts.Frozen(c.w.Key) != "" { // since it was judged
		return
	}
	outcome := "slept"
	defer func() { k.opts.RoomMade(outcome) }()
	release, err := k.slot(ctx)
	if err != nil {
		outcome = "ended"
		return
	}
	defer release()
	ctx, cancel := context.WithTimeout(ctx, k.opts.HibernateTimeout)
	defer cancel()
	_, err = c.w.Shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "memory", JudgedPackets: &c.Sample.Packets})
	if err == nil {
		return
	}
	outcome = outcomeOf(err)
	k.opts.Log.Info("did not hibernate to make room", "namespace", c.w.Namespace, "id", c.w.ID, "error", err)
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, followed := k.judgements[c.w]; followed {
		k.spared[c.w] = time.Now().Add(spareFor)
	}
}
