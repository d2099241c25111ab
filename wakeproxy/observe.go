package wakeproxy

import (
	"net/netip"
	"time"
)

// Observer is told what happens, for metrics and logs. Its methods are called
// from the paths of connections, several at once: they must be quick.
type Observer interface {
	// Held is called when connections begin to wait on a port.
	Held(port uint16)
	// Woke is called after each call of Waker.Wake.
	Woke(Woke)
	// Accepted is called when a connection was taken from the backlog.
	Accepted(port uint16, client netip.AddrPort)
	// Drained is called when such a connection has ended, however it did.
	Drained(Drained)
	// Limited is called when connections wait because a limit is reached.
	Limited(port uint16)
}

// Woke tells how one wake went.
type Woke struct {
	ID      string // as WakeID gives it
	Reason  string
	Took    time.Duration
	Waiters int // ports and dials that shared it
	Err     error
}

// Drained tells how one connection went.
type Drained struct {
	Port   uint16
	Client netip.AddrPort
	// In and Out are the bytes passed on to the workload and to the client.
	In, Out int64
	// Dial is the time from accepting the client to being connected to the
	// workload; Took is the time from accepting to the end.
	Dial, Took time.Duration
	// Err is nil when both sides ended in order. The client of a connection
	// that could not be dialled was refused, as was one whose wake failed.
	Err error
	// Refused is how a client that never reached the workload was told so:
	// RefusedReset, RefusedHTTP, or "" for all others.
	Refused string
}

// The ways to refuse a client.
const (
	RefusedReset = "reset"
	RefusedHTTP  = "503"
)

// silent is the Observer of those who gave none.
type silent struct{}

func (silent) Held(uint16)                     {}
func (silent) Woke(Woke)                       {}
func (silent) Accepted(uint16, netip.AddrPort) {}
func (silent) Drained(Drained)                 {}
func (silent) Limited(uint16)                  {}
