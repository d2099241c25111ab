package sandbox

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/reap"
)

// Options is what a workload is given by its shim.
type Options struct {
	Namespace string // containerd's
	ID        string // of the container, or of the pod's first container
	Bundle    string // containerd's bundle directory, absolute
	Address   string // the shim's ttrpc address, for its record
	Version   string // the shim's

	// Containerd is the socket of the containerd that runs the container; "" when it was not told.
	Containerd string

	Runner  runsc.Runner
	Born    Born
	Exits   Exits
	Publish Publish
	Daemon  Daemon
	Log     *slog.Logger
	Now     func() time.Time
}

// Born gives runners whose commands are born in a control group.
type Born interface {
	RunnerIn(g reap.Group) runsc.Runner
}

// Exits tells the end of the shim's children, adopted ones included.
type Exits interface {
	Watch(pid int) <-chan reap.Exit
}

// Publish queues an event for containerd and never blocks. Events reach containerd in the order of the calls.
type Publish func(topic string, event any)

// Daemon is the node's daemon as a workload needs it.
type Daemon interface {
	// Offer hands over the workload's listening sockets. It returns nil when the daemon has acknowledged that it
	// holds them, and an error when there is no daemon or it refused. The files stay the caller's. What it returns are
	// listening sockets that the daemon kept when an earlier shim of the container died, by port; they are the caller's.
	Offer(ctx context.Context, offer Offer) (kept map[uint16]*os.File, err error)
	// Ended tells the daemon that the workload has ended: who waits for it or talks to it is reset at once. A shim that
	// leaves without it is taken for one that died.
	Ended()
	// Connected says whether a daemon holds this workload's registration now.
	Connected() bool
}

// Offer is what the daemon needs to hold a workload's connections.
type Offer struct {
	Namespace, ID string
	Target        string   // the workload's address
	Pod           *os.File // the pod's network namespace
	PodPath       string   // where that is found; "" when it goes with the container
	Ports         []uint16
	Listeners     []*os.File // one a port, in the ports' order
}

// places are the files of one workload inside its bundle.
type places struct{ bundle string }

func (p places) dir() string      { return filepath.Join(p.bundle, "hibernate") }
func (p places) journal() string  { return filepath.Join(p.dir(), "journal.json") }
func (p places) state() string    { return filepath.Join(p.dir(), "state.json") }
func (p places) settings() string { return filepath.Join(p.dir(), "settings.json") }
func (p places) sandbox() string  { return filepath.Join(p.dir(), "sandbox") } // runsc's bundle
func (p places) logs() string     { return filepath.Join(p.dir(), "log") }
func (p places) pidFile() string  { return filepath.Join(p.dir(), "sandbox.pid") }
func (p places) loading() string  { return filepath.Join(p.dir(), "loading") } // the image directory of a flat wake
func (p places) rootfs() string   { return filepath.Join(p.bundle, "rootfs") }
