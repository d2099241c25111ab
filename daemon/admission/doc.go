// Package admission decides which workloads are woken now, which wait for their turn, and which are refused, so that a burst
// of connections to many sleepers costs no more processor time and memory at once than the node has.
//
// Vocabulary:
//
//   - ticket: one request to wake a workload for connections. It waits, is granted or is refused, and is given back when the
//     wake has ended.
//   - run: a wake that is under way. One that nobody asked here for, because the shim began it by itself (a packet, an exec, a
//     signal), is counted like the others; it can't be refused.
//   - need: the memory that a workload is expected to take when it is awake: its snapshot's size and a margin.
//   - reserved: the needs of all runs, which are not yet seen in what the node has available.
//   - turn: tickets of one namespace are served in the order in which they came, namespaces in rotation. A ticket for which
//     there is no memory yet may be passed by a few that fit, and by no more.
//   - room: memory that is made by hibernating what is idle longest.
//
// A run that shows no sign of life, because its shim hangs, is not counted any more after a while: it takes nothing, and must
// not keep others from waking.
package admission

import (
	"fmt"
	"time"
)

// Limits of a node.
type Limits struct {
	// Wakes at once, and tickets that wait.
	Wakes, Queue int
	// Spare is how much memory must be left available, in bytes.
	Spare uint64
}

// The reasons of refusals.
const (
	QueueFull = "queue-full"
	NoMemory  = "memory"
)

// Refusal is the error for a ticket that will not be granted.
type Refusal struct {
	Reason string // QueueFull or NoMemory
	Detail string
	After  time.Duration // when another try has sense, as far as one can tell
}

// Error implements error.
func (r *Refusal) Error() string { return fmt.Sprintf("not admitted: %s [%s]", r.Detail, r.Reason) }

// RetryAfter tells when another try has sense.
func (r *Refusal) RetryAfter() time.Duration { return r.After }
