package wakeproxy

import (
	"time"

	"golang.org/x/sys/unix"
)

// A stream that doesn't pause comes in pieces, and each wakes the pump: with many small ones that costs more than to move
// the bytes. So a pump that finds nothing in such a stream lets some gather before it asks to be woken.
const (
	paceWindow = 2 * time.Millisecond
	paceBytes  = 128 << 10 // in a window; streams with less wait for nothing
	gatherFor  = 150 * time.Microsecond
	gatherers  = 8 // pumps at a time: each has a thread to itself meanwhile
)

// pace knows whether a stream carries much.
type pace struct {
	busy  bool // as far as the last window tells
	since time.Time
	bytes int
}

// moved takes note of bytes that were passed on.
func (p *pace) moved(bytes int, now time.Time) {
	if age := now.Sub(p.since); age >= paceWindow {
		p.busy = p.bytes >= paceBytes && age < 2*paceWindow
		p.since, p.bytes = now, 0
	}
	p.bytes += bytes
}

// gather lets a moment pass, by the kernel's clock: the runtime's timers take a millisecond at least.
func (pp *pipePool) gather() {
	if pp.gathering.Add(1) <= gatherers {
		pause := unix.NsecToTimespec(gatherFor.Nanoseconds())
		_ = unix.Nanosleep(&pause, nil)
	}
	pp.gathering.Add(-1)
}
