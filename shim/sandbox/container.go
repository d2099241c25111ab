package sandbox

import (
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// Container is one container of a workload. Its fields are guarded by the workload's mutex, except those that never
// change after Create.
type Container struct {
	ID       string
	Bundle   string
	Terminal bool
	Stdio    stdio.Config

	member *member // nil: the workload's root

	relay *stdio.Relay
	ended chan struct{} // closed once, after exit and letGo are set
	letGo func() error  // ends the streams for good

	state lifecycle.Container
	exit  Exit
	execs map[string]*Exec

	starting chan struct{} // closed when Start has told of the start, or failed; nil before it
}

// Exit is how a process ended: its exit code, or 128 and the signal's number.
type Exit struct {
	Status uint32
	At     time.Time
}

// Exec is a further process in a container.
type Exec struct {
	ID       string
	Terminal bool
	Stdio    stdio.Config

	relay   *stdio.Relay
	process *specs.Process
	ended   chan struct{} // closed once, after exit and letGo are set
	letGo   func() error  // ends the streams for good
	once    sync.Once

	pid     int  // inside the sandbox; 0 before it starts
	probe   bool // asks only whether the workload is well
	started bool
	since   time.Time // it started
	exit    *Exit
}

// liveExecs counts the execs that run. The caller holds the workload's mutex.
func (c *Container) liveExecs() uint32 {
	var n uint32
	for _, e := range c.execs {
		if e.started && e.exit == nil {
			n++
		}
	}
	return n
}

// busyExecs counts the execs that run and have said or been told something within silence; with 0, all that run. Probes are
// no use. The caller holds the workload's mutex.
func (c *Container) busyExecs(now time.Time, silence time.Duration) uint32 {
	var n uint32
	for _, e := range c.execs {
		if e.started && e.exit == nil && !e.probe && (silence == 0 || now.Sub(e.lastUse()) < silence) {
			n++
		}
	}
	return n
}

// lastUse is when an exec that runs was started, or its streams were used. The caller holds the workload's mutex.
func (e *Exec) lastUse() time.Time {
	if e.relay == nil {
		return e.since
	}
	if used := e.relay.LastUse(); used.After(e.since) {
		return used
	}
	return e.since
}
