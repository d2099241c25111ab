package sandbox

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A pod that is made anew *gathers* the containers of what its identity, or an earlier shim, has left asleep: gVisor restores all of them or nothing, and they are started one by one. Each that the snapshot
// has takes its place in it, and with the last one the pod wakes. Nothing else wakes it before. One that the snapshot has not, or whose specification is another one, ends that, and so does time: the wake then finds that
// the containers are not those of the snapshot, and follows the policy.

// gathering is what a pod waits for.
type gathering struct {
	places []snapshot.Container // of the snapshot, without the root
	taken  []*Container         // by place; nil: not yet
	over   chan struct{}        // closed when all are there, or it was given up
}

// gather begins to wait for the containers of what sleeps here; false where the root is all of it, or nothing can be read.
func (w *Workload) gather() bool {
	s, err := w.local.Current()
	if err != nil || len(s.Manifest().Containers) < 2 {
		return false
	}
	g := &gathering{places: s.Manifest().Containers[1:], over: make(chan struct{})}
	g.taken = make([]*Container, len(g.places))
	w.mu.Lock()
	w.gathering = g
	w.mu.Unlock()
	w.opts.Log.Info("the pod waits for the containers of its snapshot", "sequence", s.Sequence(), "containers", len(g.places))
	time.AfterFunc(w.config.WakeTimeout, func() {
		if w.scatter(g) {
			w.opts.Log.Warn("the pod's containers were not all started in time (wake-timeout)", "sequence", s.Sequence())
			_, _ = w.Wake(context.Background(), byStart, "")
		}
	})
	return true
}

// scatter gives a gathering up, if it still goes on.
func (w *Workload) scatter(g *gathering) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gathering != g {
		return false
	}
	w.gathering = nil
	close(g.over)
	return true
}

// takePlace has a container that starts take its place in what sleeps; false where the pod gathers nothing, or nothing of that name. The last one wakes the pod.
func (w *Workload) takePlace(ctx context.Context, c *Container) (bool, error) {
	w.mu.Lock()
	g := w.gathering
	w.mu.Unlock()
	if g == nil {
		return false, nil
	}
	digest, err := snapshot.SpecDigest(c.member.spec)
	if err != nil {
		return false, err
	}
	at := slices.IndexFunc(g.places, func(p snapshot.Container) bool { return p.Name == c.member.name })
	if at < 0 || g.places[at].SpecDigest != digest {
		why := "it has no such container"
		if at >= 0 {
			fields, _ := snapshot.SpecDiff(g.places[at].Spec, c.member.spec)
			why = fmt.Sprintf("its specification changed: %v", fields)
		}
		w.opts.Log.Warn("the pod's snapshot can't be restored with this container", "container", c.ID, "name", c.member.name, "reason", why)
		w.scatter(g)
		return false, nil
	}
	if err := w.aheadEnds(ctx); err != nil {
		return false, err
	}
	w.mu.Lock()
	booted := w.sandboxPid != 0
	w.mu.Unlock()
	if booted { // by Create
		if err := w.createMember(ctx, c); err != nil {
			return false, err
		}
	}
	w.mu.Lock()
	if w.gathering != g || w.state != lifecycle.Asleep {
		w.mu.Unlock()
		return false, fmt.Errorf("start of %s: the pod ended, or gave up waiting: %w", c.member.name, ErrPrecondition)
	}
	g.taken[at], c.member.inside = c, true
	w.joined = nil
	for _, t := range g.taken {
		if t != nil {
			w.joined = append(w.joined, t)
		}
	}
	if next, e := c.state.Next(lifecycle.Start); e == nil {
		c.state = next
	}
	whole := !slices.Contains(g.taken, nil)
	w.announce(nil)
	w.mu.Unlock()
	if !whole {
		return true, nil
	}
	w.scatter(g)
	_, err = w.Wake(ctx, byStart, "")
	return true, err
}

// gathered waits until the pod gathers no more.
func (w *Workload) gathered(ctx context.Context, g *gathering) error {
	select {
	case <-g.over:
		return nil
	case <-w.root().ended:
		return ErrKilled
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
