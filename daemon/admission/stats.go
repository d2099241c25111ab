package admission

import (
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Stats is the state at one moment.
type Stats struct {
	Waiting, Running int
	// Lack is how much memory is wanting for the first ticket that waits for it, in bytes.
	Lack uint64
}

// Stats counts tickets that wait, and wakes under way.
func (c *Controller) Stats() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	runs, _ := c.core.load(c.opts.Now())
	return Stats{Waiting: c.core.waiting, Running: runs, Lack: c.lack}
}

// Waits says for a person what a workload's wake waits for; "" when it doesn't wait.
func (c *Controller) Waits(key node.Key) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	for place, t := range c.core.queues[key.Namespace] {
		if t.key == key {
			return fmt.Sprintf("%s, %s; number %d of %d in its namespace, %d on the node", c.describe(t), ago(c.opts.Now(), t.since), place+1,
				len(c.core.queues[key.Namespace]), c.core.waiting)
		}
	}
	return ""
}

func ago(now, since time.Time) string {
	return "for " + now.Sub(since).Round(100*time.Millisecond).String() + " so far"
}

// waitsFor is what a ticket that is given up has waited for.
func (c *Controller) waitsFor(t *ticket) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.describe(t)
}

// describe is in words what a ticket waits for. c.mu is held.
func (c *Controller) describe(t *ticket) string {
	if c.closed != "" {
		return c.closed
	}
	if t.blocked > 0 {
		return fmt.Sprintf("memory, of which %d MiB are wanting", (t.blocked+1<<20-1)>>20)
	}
	return fmt.Sprintf("its turn, as %d wake at once", c.core.limits.Wakes)
}
