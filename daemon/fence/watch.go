package fence

import (
	"context"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// place is what was seen of a node's object. Times are the clock's that stands still while this machine is suspended.
type place struct {
	durable.Sighting
	first time.Duration // after the first look
	last  time.Duration // before the last look
	wrote map[string]wrote
}

// wrote says when the newest write of an incarnation was seen first, and what it said.
type wrote struct {
	since    time.Duration
	takeOver time.Duration
}

// observe takes what a look at an object has found that was begun and ended then.
func (f *Fence) observe(object string, s durable.Sighting, begun, ended time.Duration) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.nodes[object]
	fresh := p == nil
	if fresh {
		p = &place{first: ended, wrote: make(map[string]wrote)}
		f.nodes[object] = p
	}
	if !fresh && begun < p.last {
		return // an older look, whose answer came late
	}
	if (fresh || !p.Same(s)) && s.Incarnation != "" {
		p.wrote[s.Incarnation] = wrote{since: ended, takeOver: s.TakeOver}
	}
	p.Sighting, p.last = s, begun
}

// Verdict on a node.
type Verdict struct {
	Dead   bool
	Silent time.Duration // as far as this node has seen
	DeadIn time.Duration // if it stays so; 0: it is dead, or can't be told
	Err    error         // why it can't be told
}

// Judge looks at an owner's node. What was read before the call, such as that it is the owner, may be acted upon when it is dead: it
// doesn't run any more what it had claimed by then, and can't claim it again but by changing what was read.
func (f *Fence) Judge(ctx context.Context, o durable.Owner) (Verdict, error) {
	tier, err := f.opts.Tier()
	if err != nil {
		return Verdict{}, err
	}
	begun := f.opts.Awake()
	s, err := tier.Node(ctx, o.Node)
	if err != nil {
		return Verdict{}, err
	}
	object := durable.NodeObject(o.Node)
	f.observe(object, s, begun, f.opts.Awake())
	if s.Err != nil {
		return Verdict{Err: s.Err}, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.nodes[object].judge(o.Incarnation, f.opts.After), nil
}

// judge is about an incarnation. One that was never seen is as silent as somebody looked.
func (p *place) judge(incarnation string, after time.Duration) (v Verdict) {
	since := p.first
	if w, ok := p.wrote[incarnation]; ok {
		since, after = w.since, max(after, w.takeOver)
	}
	v.Silent = max(0, p.last-since)
	if v.Dead = v.Silent >= enough(after); !v.Dead {
		v.DeadIn = enough(after) - v.Silent
	}
	return v
}

// watch looks at all nodes: often while something is claimed here, else now and then, so that one that died long ago needn't be waited for.
func (f *Fence) watch(ctx context.Context) {
	for ctx.Err() == nil {
		f.look(ctx)
		wait := f.every()
		if !f.opts.Claimed() {
			wait = f.opts.After
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// look takes one look at all. One that fails says nothing.
func (f *Fence) look(ctx context.Context) {
	tier, err := f.opts.Tier()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, f.opts.After)
	defer cancel()
	known := make(map[string]durable.Sighting)
	f.mu.Lock()
	for object, p := range f.nodes {
		known[object] = p.Sighting
	}
	f.mu.Unlock()
	begun := f.opts.Awake()
	all, err := tier.Nodes(ctx, known)
	if err != nil {
		f.opts.Log.Debug("the other nodes were not looked at", "error", err)
		return
	}
	ended := f.opts.Awake()
	for object, s := range all {
		f.observe(object, s, begun, ended)
	}
	for object := range known {
		if _, there := all[object]; !there {
			f.observe(object, durable.Sighting{}, begun, ended)
		}
	}
}

// Counts of nodes that were seen: those that live as far as is known, and those that are dead or have nothing claimed.
func (f *Fence) Counts() (living, silent int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.nodes {
		if p.Version == "" {
			continue
		}
		if p.judge(p.Incarnation, f.opts.After).Dead {
			silent++
		} else {
			living++
		}
	}
	return living, silent
}
