package sandbox

import (
	"context"
	"sync"
	"time"

	"github.com/containerd/typeurl/v2"

	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// All of a pod's containers run in one process of the host's. What that has used of the processors is shared out among the members by what the sandbox says
// that each has used; of its memory, of which nobody knows whose it is, each has the same part.

// usage is a member's part of the processor time, which never falls.
type usage struct {
	cpu  time.Duration
	seen uint64 // what the sandbox has told last
}

// sharing is the account of a pod's processor time. The zero value is one of which nothing is shared out yet.
type sharing struct {
	mu     sync.Mutex // one reading at a time; guards the fields below and the members' usage
	at     time.Time
	shared time.Duration // of the group's time
}

const (
	shareAgain  = 500 * time.Millisecond // between two readings
	shareWithin = time.Second            // for the sandbox's answer
)

// memberMetrics are a member's.
func (w *Workload) memberMetrics(c *Container) (typeurl.Any, error) {
	w.mu.Lock()
	var parts uint64
	for _, o := range w.insideLocked() {
		if o.live() {
			parts++
		}
	}
	w.mu.Unlock()
	w.shareOut()
	w.sharing.mu.Lock()
	cpu := c.member.use.cpu
	w.sharing.mu.Unlock()
	return cgroup.Part(c.member.group, w.group, cpu, parts)
}

// shareOut brings the members' usage up to date, unless somebody does so already.
func (w *Workload) shareOut() {
	s := &w.sharing
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	now := w.opts.Now()
	if now.Sub(s.at) < shareAgain {
		return
	}
	s.at = now
	w.mu.Lock()
	awake := w.state == lifecycle.Awake && w.changing == 0
	var members []*Container
	for _, c := range w.insideLocked() {
		if c.live() {
			members = append(members, c)
		}
	}
	w.mu.Unlock()
	used := w.group.CPU()
	if used <= s.shared || len(members) == 0 {
		return
	}
	told := map[string]uint64{}
	if awake {
		ctx, cancel := context.WithTimeout(context.Background(), shareWithin)
		defer cancel()
		var err error
		if told, err = w.runsc.Usage(ctx, w.opts.ID); err != nil {
			w.opts.Log.Debug("usage", "error", err)
		}
	}
	shareOut(members, told, used-s.shared)
	s.shared = used
}

// shareOut gives each member its part of what was used since the last time.
func shareOut(members []*Container, told map[string]uint64, used time.Duration) {
	more := make([]uint64, len(members))
	var all uint64
	for i, c := range members {
		u := &c.member.use
		now, known := told[c.ID]
		if !known {
			continue
		}
		more[i] = now
		if now >= u.seen { // else another sandbox, whose account began anew
			more[i] = now - u.seen
		}
		u.seen = now
		all += more[i]
	}
	for i, c := range members {
		part := 1 / float64(len(members))
		if all > 0 {
			part = float64(more[i]) / float64(all)
		}
		c.member.use.cpu += time.Duration(part * float64(used))
	}
}
