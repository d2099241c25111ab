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
func (d *Daemon) Connected() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.conn != nil
}

// Offer registers a workload's listeners. A nil error means that the daemon holds them.
func (d *Daemon) Offer(_ context.Context, o sandbox.Offer) error {
	d.mu.Lock()
	conn := d.conn
	d.mu.Unlock()
	if conn == nil {
		return ErrNoDaemon
	}
	target, _ := netip.ParseAddr(o.Target) // none: nothing can be dialed, and there are no ports
	hello := handover.Hello{
		Namespace: o.Namespace, ID: o.ID, Address: d.address, Pid: os.Getpid(), Version: d.version, Target: target, Ports: o.Ports,
	}
	return conn.Send(hello, append([]*os.File{o.Pod}, o.Listeners...))
}
