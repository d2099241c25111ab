package control

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
)

// ErrNoDaemon: no daemon runs, or it has gone.
var ErrNoDaemon = errors.New("no daemon is connected")

// The daemon is dialed again after these pauses: soon after it went, seldom when it stays away.
const (
	firstRetry = 100 * time.Millisecond
	lastRetry  = 2 * time.Second
)

// Daemon keeps the shim registered with the node's daemon, for as long as Run runs.
type Daemon struct {
	address string // the shim's own, for the daemon to call back
	version string
	log     *slog.Logger

	mu   sync.Mutex // guards conn
	conn *handover.Conn
}

// NewDaemon returns the registration of a shim that serves address. It dials nothing before Run.
func NewDaemon(address, version string, log *slog.Logger) *Daemon {
	return &Daemon{address: address, version: version, log: log}
}

// Events is told when a daemon comes and goes.
type Events interface {
	DaemonUp()
	DaemonDown()
	// Over says whether there is nothing that could be started again.
	Over() bool
}

// Run dials socket again and again until ctx ends, and tells events of each daemon that comes and goes.
func (d *Daemon) Run(ctx context.Context, socket string, events Events) {
	pause := firstRetry
	for ctx.Err() == nil {
		conn, err := handover.Dial(ctx, socket)
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(pause):
			}
			pause = min(2*pause, lastRetry)
			continue
		}
		pause = firstRetry
		d.set(conn)
		events.DaemonUp()
		if err := conn.Wait(ctx); err == nil {
			d.log.Warn("the daemon is gone")
		} else if events.Over() {
			d.Ended()
		}
		d.set(nil)
		_ = conn.Close()
		if ctx.Err() == nil {
			events.DaemonDown()
		}
	}
}

func (d *Daemon) set(conn *handover.Conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.conn = conn
}

// Connected says whether a daemon is there.
func (d *Daemon) Connected() bool { return d.connection() != nil }

// Offer registers a workload's listeners. A nil error means that the daemon holds them. It may give back what it has kept
// of an earlier shim's.
func (d *Daemon) Offer(ctx context.Context, o sandbox.Offer) (kept map[uint16]*os.File, err error) {
	conn := d.connection()
	if conn == nil {
		return nil, ErrNoDaemon
	}
	target, _ := netip.ParseAddr(o.Target) // none: nothing can be dialed, and there are no ports
	hello := handover.Hello{
		Namespace: o.Namespace, ID: o.ID, Address: d.address, Pid: os.Getpid(), Version: d.version, Target: target, Ports: o.Ports,
		PodPath: o.PodPath,
	}
	return conn.Send(ctx, hello, append([]*os.File{o.Pod}, o.Listeners...))
}

// Ended tells the daemon that the workload has ended, so that nobody waits for it. A daemon that comes later is told by the
// next offer's maker.
func (d *Daemon) Ended() {
	conn := d.connection()
	if conn == nil {
		return
	}
	if err := conn.End(); err != nil {
		d.log.Warn("the daemon was not told of the end", "error", err)
	}
}

func (d *Daemon) connection() *handover.Conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conn
}
