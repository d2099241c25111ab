// Package daemon is hibernated: it joins the parts below it, and decides in what order they start and stop.
//
//	registry  takes the shims' registrations and listeners
//	proxy     serves the listeners with package wakeproxy
//	node      the view of all shims, with a watch on each
//	keeper    samples idleness and has shims hibernate; idle is its policy
//	admission lets wakes begin, so many at once as the node has processors and memory for
//	selfprobe has the daemon be its own client now and then
//	drainer   carries connections on when the daemon has ended
//	leftover  finds snapshots that no shim looks after, and removes those whose container is gone
//	expire    ends sleepers that nobody has wanted for as long as they say
//	peer      asks the daemons of other nodes, and answers them
//	upload    brings each sleep's snapshot to the durable tier, where there is one, and claims workloads with an identity in it
//	fence     tells other nodes that this one lives, shims until when that is known, and upload which others are dead
//	pool      has templates' children be made ready, and removed
//	pages     serves snapshots in the durable tier to shims and their sidecars
//	events    the log of what became of transitions
//	server    the API, metrics and health
//
// Beside that log it keeps no state of its own: a daemon that is killed leaves the listeners, with the connections in their backlogs, to
// the shims, and the next daemon learns everything from them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/daemon/admission"
	"github.com/hibernate-runtime/hibernate/daemon/drainer"
	"github.com/hibernate-runtime/hibernate/daemon/expire"
	"github.com/hibernate-runtime/hibernate/daemon/facts"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/leftover"
	pageserver "github.com/hibernate-runtime/hibernate/daemon/pages"
	"github.com/hibernate-runtime/hibernate/daemon/pool"
	"github.com/hibernate-runtime/hibernate/daemon/server"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Options of a Daemon. RunDir and Dial are required.
type Options struct {
	// RunDir holds the sockets and the shims' records.
	RunDir string
	// RegistrationSocket, APISocket and PagesSocket; the default is hibernated.sock, api.sock and pages.sock in RunDir.
	RegistrationSocket, APISocket, PagesSocket string
	// MetricsAddress is where /metrics and /healthz are served; "" for nowhere.
	MetricsAddress string
	Version        string
	Policy         idle.Policy
	// Concurrent hibernations at most; 0 for one on each core.
	Concurrent int
	// Wakes at once, how many may wait for that, and how much memory must be left. Defaults: one for each core, at least two;
	// 1024; 0.
	Wakes admission.Limits
	// Available is the memory that the node can give away. Default: admission.Available.
	Available func() (uint64, error)
	// Connections that are passed on at once, to all workloads. Default as wakeproxy.NewNode has it.
	Connections int
	// AnswerHTTP, Limits, WakeTimeout, SilentAfter and Grace as packages wakeproxy and proxy have them. Limits are those of a
	// workload that has told none of its own.
	AnswerHTTP         bool
	Limits             wakeproxy.Limits
	SilentAfter        time.Duration
	WakeTimeout, Grace time.Duration
	// CarryOn, when set, is given the connections that are still passed on when the daemon has ended: they are its own. Without it
	// they have Grace, and are reset then.
	CarryOn func([]drainer.Workload) error
	// Orphans is how long the connections of a shim that died wait for their container to be started again; 0 for not at all.
	Orphans time.Duration
	// DataDir holds the snapshots, to be looked through for what no shim looks after; "" for not at all.
	DataDir string
	// MinFreeDisk is what must be left there, in bytes: told beside what is left.
	MinFreeDisk uint64
	// CollectAfter is how long a container must be gone before what is left of it is removed; 0 for never.
	CollectAfter time.Duration
	// AlarmAfter is how long a workload's activity must not be measurable before that is an alarm. Default 30 s.
	AlarmAfter time.Duration
	// Reap takes down what a shim that has died left, as containerd would. Default: nobody does.
	Reap func(context.Context, handover.Record) error
	// Facts are of the node, and kept up to date while the daemon runs; nil: none. RunscDir is where further runscs are kept.
	Facts    *facts.Node
	RunscDir string
	// Store is the durable tier's; nil: there is none. DataDir is required with it.
	Store *StoreOptions
	// Ctl runs hibernatectl with these arguments, to keep pools; nil: there are none.
	Ctl func(ctx context.Context, args ...string) error
	// ScanEvery is the time between scans of the records. Default 2 s.
	ScanEvery time.Duration
	// Dial connects to a workload from within its pod's namespace with the client's address.
	Dial func(ctx context.Context, pod *os.File, client, target netip.AddrPort) (net.Conn, error)
	// Ready is called when everything listens.
	Ready func()
	Log   *slog.Logger
}

// StoreOptions say where snapshots are copied to. See upload.Options.
type StoreOptions struct {
	Open func() (store.Store, error)
	URL  string
	Keys durable.Keyring
	Node string
	Keep int
	Rate int64
	// Quota bounds what a workload's snapshots take there, in bytes; 0: nothing does.
	Quota int64
	// Relaxed and TakeOver are the keys fencing and takeover-after; Facts are what other nodes are told of this one.
	Relaxed  bool
	TakeOver time.Duration
	// PeerAddress and PeerAdvertise are the keys peer-address and peer-advertise.
	PeerAddress, PeerAdvertise string
	Facts                      func() map[string]string
}

func (o Options) withDefaults() Options {
	if o.RegistrationSocket == "" {
		o.RegistrationSocket = filepath.Join(o.RunDir, "hibernated.sock")
	}
	if o.APISocket == "" {
		o.APISocket = filepath.Join(o.RunDir, "api.sock")
	}
	if o.PagesSocket == "" {
		o.PagesSocket = pages.Socket(o.RunDir)
	}
	if o.Wakes.Wakes <= 0 {
		o.Wakes.Wakes = max(2, runtime.GOMAXPROCS(0))
	}
	if o.Wakes.Queue <= 0 {
		o.Wakes.Queue = 1024
	}
	if o.Available == nil {
		o.Available = admission.Available
	}
	if o.Reap == nil {
		o.Reap = func(context.Context, handover.Record) error { return errors.New("nobody can") }
	}
	if o.Ready == nil {
		o.Ready = func() {}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Run is the daemon's life. It ends in order when ctx does: first nobody can ask it any more, then the shims take over,
// then connections are drained, or given to others who carry them on, then the view is closed. The error is nil then, or why it
// could not go on.
func Run(ctx context.Context, opts Options) error {
	opts = opts.withDefaults()
	sockets, err := listen(opts)
	if err != nil {
		return err
	}
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	registering, stopRegistering := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRegistering()
	p := assemble(opts)
	defer p.close()
	var answers, registrations sync.WaitGroup
	spawn := func(group *sync.WaitGroup, run func() error) {
		group.Go(func() {
			if err := run(); err != nil {
				fail(err)
			}
		})
	}
	spawn(&registrations, func() error { return p.registry.Run(registering, sockets.registration) })
	spawn(&answers, func() error { return server.ServeAPI(running, sockets.api, p.api, p.rights) })
	spawn(&answers, func() error { return p.pages.Serve(running, sockets.pages) })
	if p.peers != nil {
		spawn(&answers, func() error { return p.peers.server.Serve(running, sockets.peer) })
		defer p.peers.client.Close()
	}
	answers.Go(func() { p.admission.Run(running) })
	answers.Go(func() { p.selfProbe.Run(running) })
	if sockets.metrics != nil {
		healthy := func() error { return errors.Join(running.Err(), p.selfProbe.Err()) }
		handler := server.Handler(p.metrics.Handler(), healthy, p.notes)
		spawn(&answers, func() error { return server.ServeHTTP(running, sockets.metrics, handler) })
	}
	if opts.DataDir != "" {
		collector := &leftover.Collector{DataDir: opts.DataDir, RunDir: opts.RunDir, After: opts.CollectAfter, Log: opts.Log}
		answers.Go(func() { collector.Run(running) })
	}
	expirer := &expire.Expirer{List: p.view.List, Ended: p.expired, Log: opts.Log}
	if opts.DataDir != "" {
		expirer.Record = filepath.Join(opts.DataDir, ".expired.jsonl")
	}
	answers.Go(func() { expirer.Run(running) })
	if opts.Ctl != nil {
		pools := &pool.Keeper{RunDir: opts.RunDir, List: p.view.List, Ctl: opts.Ctl, Log: opts.Log}
		answers.Go(func() { pools.Run(running) })
	}
	var uploads sync.WaitGroup
	defer uploads.Wait() // last: what a store that hangs holds up is nobody's connection
	if p.upload != nil {
		uploads.Go(func() { p.upload.Run(running) })
	}
	if opts.Facts != nil {
		answers.Go(func() { opts.Facts.Run(running) })
	}
	if p.fence != nil && !opts.Store.Relaxed {
		answers.Go(func() { p.abandoned.run(running) })
	}
	if p.fence != nil {
		uploads.Go(func() {
			select {
			case <-p.upload.Ready():
				uploads.Go(func() { p.announce(running) })
				p.fence.Run(running)
			case <-running.Done():
			}
		})
	}
	opts.Log.Info("hibernated runs", "version", opts.Version, "run_dir", opts.RunDir, "metrics", opts.MetricsAddress)
	opts.Ready()
	<-running.Done()
	answers.Wait()
	stopRegistering()
	registrations.Wait()
	err = p.loose.carryOn(opts)
	if ctx.Err() == nil {
		return errors.Join(context.Cause(running), err)
	}
	opts.Log.Info("hibernated ends")
	return err
}

// sockets are what the daemon listens at.
type sockets struct {
	registration *handover.Server
	api, pages   net.Listener
	metrics      net.Listener // nil when none is wanted
	peer         net.Listener // nil when none is wanted
}

// listen makes the sockets. The registration socket comes first: its lock keeps a second daemon out.
func listen(opts Options) (s sockets, err error) {
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if err := os.MkdirAll(opts.RunDir, 0o700); err != nil {
		return s, fmt.Errorf("make the run directory: %w", err)
	}
	if s.registration, err = handover.Listen(opts.RegistrationSocket); err != nil {
		return s, err
	}
	if s.api, err = server.ListenAPI(opts.APISocket); err != nil {
		return s, err
	}
	if s.pages, err = pageserver.Listen(opts.PagesSocket); err != nil {
		return s, err
	}
	if opts.MetricsAddress != "" {
		if s.metrics, err = net.Listen("tcp", opts.MetricsAddress); err != nil {
			return s, fmt.Errorf("metrics-address: %w", err)
		}
	}
	if s.peer, err = listenPeers(opts); err != nil {
		return s, err
	}
	return s, nil
}

func (s sockets) close() {
	for _, l := range []net.Listener{s.metrics, s.api, s.pages, s.peer} {
		if l != nil {
			_ = l.Close()
		}
	}
	if s.registration != nil {
		_ = s.registration.Close()
	}
}
