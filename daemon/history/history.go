// Package history remembers the last wakes of each workload, with their steps, for people who ask why they were slow.
//
// It is told by the shims' events, and of those before the daemon's start knows the last one alone, which a shim's status has.
package history

import (
	"slices"
	"sync"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Kept is how many wakes of a workload are remembered.
const Kept = 16

// Wakes of a node's workloads. The zero value is ready. Safe for concurrent use.
type Wakes struct {
	mu  sync.Mutex
	all map[node.Key][]*shimv1.Transition // guarded by mu; the newest last
}

// On takes an event of a workload. A wake that is told twice counts once.
func (h *Wakes) On(key node.Key, event *shimv1.Event) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range []*shimv1.Transition{event.GetTransition(), event.GetStatus().GetLastWake()} {
		if t.GetKind() != "wake" || t.GetOutcome() == "" {
			continue
		}
		if h.all == nil {
			h.all = make(map[node.Key][]*shimv1.Transition)
		}
		list := h.all[key]
		at := slices.IndexFunc(list, func(o *shimv1.Transition) bool { return o.GetId() == t.GetId() })
		switch {
		case at >= 0:
			list[at] = t // its ladder is told later
			continue
		case len(list) == Kept:
			list = slices.Delete(list, 0, 1)
		}
		h.all[key] = append(list, t)
	}
}

// Forget drops a workload that has left.
func (h *Wakes) Forget(key node.Key) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, key)
}

// Of are a workload's, the newest first. They must not be changed.
func (h *Wakes) Of(key node.Key) []*shimv1.Transition {
	h.mu.Lock()
	defer h.mu.Unlock()
	list := slices.Clone(h.all[key])
	slices.Reverse(list)
	return list
}
