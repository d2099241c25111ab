package wakeproxy

import (
	"context"
	"time"
)

// Limits bound what one workload may take. The zero value of each field means
// its default.
type Limits struct {
	// Connections is how many connections may be drained at once. More wait
	// in the backlog; nothing is refused. Default 8192.
	Connections int
	// DialTimeout bounds the connecting to the woken workload, all attempts
	// together. A workload that falls asleep at that moment is woken again
	// by the attempt itself, so it must be longer than a wake. Default 30 s.
	DialTimeout time.Duration
	// RefusedFor is how long a workload that refuses connections is tried
	// again, since its server may need a moment after a cold start.
	// Default 1 s.
	RefusedFor time.Duration
	// HoldFor is how long connections wait for a wake, all tries together;
	// then they are refused. Default 1 minute; errors that are
	// [ErrPermanent] are not tried again.
	HoldFor time.Duration
}

func (l Limits) withDefaults() Limits {
	setDefault(&l.Connections, 8192)
	setDefault(&l.DialTimeout, 30*time.Second)
	setDefault(&l.RefusedFor, time.Second)
	setDefault(&l.HoldFor, time.Minute)
	return l
}

func setDefault[T int | time.Duration](v *T, def T) {
	if *v == 0 {
		*v = def
	}
}

// Node is what the proxies of one process share: a limit on the connections
// drained at once, and spare pipes for splicing. Close releases the pipes when
// no proxy uses the node any more.
type Node struct {
	slots *slots
	pipes pipePool
}

// NewNode returns a Node that admits so many connections at once; 0 means
// 32768. Each takes two descriptors, two more while bytes pass a way.
func NewNode(connections int) *Node {
	setDefault(&connections, 32768)
	return &Node{slots: newSlots(func() int { return connections })}
}

// Active returns how many connections are being drained on the node. A port
// whose workload is being woken counts as one.
func (n *Node) Active() int { return n.slots.inUse() }

// Close closes the spare pipes. Connections that still run are not touched.
func (n *Node) Close() { n.pipes.close() }

// admission takes a slot of the workload, then one of the node.
type admission struct{ workload, node *slots }

func (a admission) try() bool {
	if !a.workload.try() {
		return false
	}
	if !a.node.try() {
		a.workload.release()
		return false
	}
	return true
}

func (a admission) acquire(ctx context.Context) error {
	if err := a.workload.acquire(ctx); err != nil {
		return err
	}
	if err := a.node.acquire(ctx); err != nil {
		a.workload.release()
		return err
	}
	return nil
}

func (a admission) release() {
	a.node.release()
	a.workload.release()
}
