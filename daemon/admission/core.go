package admission

import (
	"fmt"
	"slices"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

const (
	// startWithin is how long a granted wake counts before the shim tells that it has begun.
	startWithin = 2 * time.Second
	// stuckAfter is how long a wake that has begun counts at most.
	stuckAfter = 30 * time.Second
	// hopelessFor is how long a ticket must be too large even for a node where everything sleeps that can: what has just ended
	// may not have given back its memory yet.
	hopelessFor = time.Second
	// passMax is how many others may pass a ticket that waits for memory.
	passMax = 8
	// The bounds of Refusal.After.
	afterMin, afterMax = time.Second, time.Minute
)

// core is the state and all decisions. It has no clock, starts nothing and calls nobody; its owner serialises the calls.
type core struct {
	limits  Limits
	running map[node.Key]*run
	waiting int
	queues  map[string][]*ticket // by namespace, in the order of their coming; none is empty
	turns   []string             // the namespaces of queues; whose turn it is comes first
	took    time.Duration        // by a wake, smoothed
}

// ticket is in a queue until it is granted or refused, or has left.
type ticket struct {
	key     node.Key
	need    uint64
	since   time.Time
	passed  int    // by others, for want of memory
	blocked uint64 // how much memory is wanting for it; 0 when it waits for a turn
	run     *run   // once granted
	waited  time.Duration
	refusal *Refusal
	settled chan struct{} // closed when run or refusal is set
}

// run is a wake that is under way, or has been granted.
type run struct {
	need    uint64
	tickets int
	waking  bool      // the shim says so
	since   time.Time // it was granted, or began
	began   time.Time // it was granted, or seen first
}

// memory is what the node has; the zero value says that nobody knows.
type memory struct {
	known     bool
	available uint64
	evictable func() uint64 // what is awake and could sleep
}

func newCore(limits Limits) *core {
	return &core{limits: limits, running: make(map[node.Key]*run), queues: make(map[string][]*ticket)}
}

// enter puts a ticket at its queue's end. It is settled at once when the queue is full.
func (c *core) enter(now time.Time, key node.Key, need uint64) *ticket {
	t := &ticket{key: key, need: need, since: now, settled: make(chan struct{})}
	if c.waiting >= c.limits.Queue && c.running[key] == nil {
		t.refuse(&Refusal{Reason: QueueFull, Detail: fmt.Sprintf("%d workloads wait for their turn to wake", c.waiting), After: c.after()})
		return t
	}
	if len(c.queues[key.Namespace]) == 0 {
		c.turns = append(c.turns, key.Namespace)
	}
	c.queues[key.Namespace] = append(c.queues[key.Namespace], t)
	c.waiting++
	return t
}

func (t *ticket) refuse(r *Refusal) {
	t.refusal = r
	close(t.settled)
}

// leave gives a ticket back, wherever it is.
func (c *core) leave(t *ticket) {
	if t.run == nil {
		c.unqueue(t)
		return
	}
	t.run.tickets--
	if t.run.tickets == 0 && !t.run.waking && c.running[t.key] == t.run {
		delete(c.running, t.key)
	}
}

// unqueue takes a ticket out of its queue; the namespace keeps its place among the turns.
func (c *core) unqueue(t *ticket) {
	queue := c.queues[t.key.Namespace]
	i := slices.Index(queue, t)
	if i < 0 {
		return
	}
	c.waiting--
	if queue = slices.Delete(queue, i, i+1); len(queue) > 0 {
		c.queues[t.key.Namespace] = queue
		return
	}
	delete(c.queues, t.key.Namespace)
	c.turns = slices.DeleteFunc(c.turns, func(ns string) bool { return ns == t.key.Namespace })
}

// state takes what a shim says of its workload.
func (c *core) state(now time.Time, key node.Key, state string, need uint64) {
	r := c.running[key]
	switch {
	case state == "waking" && r == nil:
		c.running[key] = &run{need: need, waking: true, since: now, began: now}
	case state == "waking" && !r.waking:
		r.waking, r.since = true, now
	case state != "waking" && r != nil && (r.waking || state == "awake"):
		c.learn(now.Sub(r.began))
		delete(c.running, key)
	}
}

// gone forgets a workload's run.
func (c *core) gone(key node.Key) { delete(c.running, key) }

func (c *core) learn(took time.Duration) {
	if c.took == 0 {
		c.took = took
	}
	c.took += (took - c.took) / 8
}

// after guesses when the queue will have been served once.
func (c *core) after() time.Duration {
	rounds := time.Duration(c.waiting/max(c.limits.Wakes, 1) + 1)
	return min(max(rounds*c.took, afterMin), afterMax)
}

// counts reports whether a run takes a turn and memory.
func (r *run) counts(now time.Time) bool {
	if r.waking {
		return now.Sub(r.since) < stuckAfter
	}
	return now.Sub(r.since) < startWithin
}

// load is how many runs count, and what they have reserved.
func (c *core) load(now time.Time) (runs int, reserved uint64) {
	for key, r := range c.running {
		switch {
		case r.counts(now):
			runs++
			reserved += r.need
		case r.tickets == 0: // whatever it does, nobody hears of it
			delete(c.running, key)
		}
	}
	return runs, reserved
}

// step settles what can be settled now. It returns those tickets, and how much memory is wanting for the first that waits for
// that; mem is asked only when somebody waits.
func (c *core) step(now time.Time, mem func() memory) (settled []*ticket, lack uint64) {
	settled = c.join(now)
	runs, reserved := c.load(now)
	if c.waiting == 0 || runs >= c.limits.Wakes {
		return settled, 0
	}
	m := mem()
	for runs < c.limits.Wakes {
		var t *ticket
		t, lack = c.pick(now, m, reserved, &settled)
		if t == nil {
			return settled, lack
		}
		c.grant(now, t)
		settled = append(settled, t)
		runs++
		reserved += t.need
	}
	return settled, 0
}

// join grants what asks for a wake that is under way.
func (c *core) join(now time.Time) (joined []*ticket) {
	for _, ns := range slices.Clone(c.turns) {
		for _, t := range slices.Clone(c.queues[ns]) {
			if c.running[t.key] != nil {
				c.grant(now, t)
				joined = append(joined, t)
			}
		}
	}
	return joined
}

// pick finds whose turn it is among those that there is memory for; nil when there is nobody. Tickets that can't ever be
// granted are refused and added to settled.
func (c *core) pick(now time.Time, m memory, reserved uint64, settled *[]*ticket) (picked *ticket, lack uint64) {
	var passed []*ticket
	for _, ns := range slices.Clone(c.turns) {
		for _, t := range slices.Clone(c.queues[ns]) {
			t.blocked = m.lack(t.need, reserved, c.limits.Spare)
			switch {
			case t.blocked == 0:
				for _, p := range passed {
					p.passed++
				}
				c.rotate(ns)
				return t, 0
			case now.Sub(t.since) >= hopelessFor && m.hopeless(t.need, c.limits.Spare):
				c.unqueue(t)
				t.refuse(&Refusal{
					Reason: NoMemory, After: max(c.after(), 5*time.Second),
					Detail: fmt.Sprintf("it needs %d MiB, which the node doesn't have even when all that can has gone to sleep", t.need>>20),
				})
				*settled = append(*settled, t)
				continue
			case lack == 0:
				lack = t.blocked
			}
			if t.passed >= passMax {
				return nil, lack
			}
			passed = append(passed, t)
		}
	}
	return nil, lack
}

// rotate ends a namespace's turn.
func (c *core) rotate(ns string) {
	c.turns = slices.DeleteFunc(c.turns, func(other string) bool { return other == ns })
	c.turns = append(c.turns, ns)
}

func (c *core) grant(now time.Time, t *ticket) {
	c.unqueue(t)
	r := c.running[t.key]
	if r == nil {
		r = &run{need: t.need, since: now, began: now}
		c.running[t.key] = r
	}
	r.tickets++
	t.run, t.waited = r, now.Sub(t.since)
	close(t.settled)
}

// lack is how much is wanting for need beside what is reserved and must be spared.
func (m memory) lack(need, reserved, spare uint64) uint64 {
	if want := need + reserved + spare; m.known && want > m.available {
		return want - m.available
	}
	return 0
}

// hopeless reports whether need would not fit even if everything slept that can.
func (m memory) hopeless(need, spare uint64) bool {
	return m.known && need+spare > m.available && need+spare-m.available > m.evictable()
}
