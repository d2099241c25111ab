package daemon

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/admission"
	eventlog "github.com/hibernate-runtime/hibernate/daemon/events"
	"github.com/hibernate-runtime/hibernate/daemon/expire"
	"github.com/hibernate-runtime/hibernate/daemon/facts"
	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/daemon/history"
	"github.com/hibernate-runtime/hibernate/daemon/keeper"
	"github.com/hibernate-runtime/hibernate/daemon/metrics"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/pages"
	"github.com/hibernate-runtime/hibernate/daemon/proxy"
	"github.com/hibernate-runtime/hibernate/daemon/registry"
	"github.com/hibernate-runtime/hibernate/daemon/selfprobe"
	"github.com/hibernate-runtime/hibernate/daemon/server"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/internal/cordon"
	"github.com/hibernate-runtime/hibernate/internal/freeze"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// parts are what Run joins.
type parts struct {
	view        *node.View
	keeper      *keeper.Keeper
	metrics     *metrics.Metrics
	admission   *admission.Controller
	selfProbe   *selfprobe.Prober
	proxies     *wakeproxy.Node
	registry    *registry.Registry
	loose       *loose
	api         server.API
	rights      server.Rights
	upload      *upload.Uploader // nil: there is no durable tier
	fence       *fence.Fence     // nil: nor can workloads be claimed in it
	abandoned   *abandoned
	pages       *pages.Server
	peers       *peers   // nil: other nodes are not asked, nor answered
	cordons     []string // directories
	frozen      *freeze.Reader
	dataDir     string
	minFreeDisk uint64
	history     *history.Wakes
	events      *eventlog.Log // nil: none is kept
	closing     atomic.Bool   // the view closes: what leaves it stays where it is
}

// assemble builds the parts and opens the view: from here on shims are watched and sampled.
func assemble(opts Options) *parts {
	p := &parts{proxies: wakeproxy.NewNode(opts.Connections), cordons: []string{opts.RunDir}}
	if opts.DataDir != "" {
		p.cordons = append(p.cordons, opts.DataDir)
	}
	p.dataDir, p.minFreeDisk = opts.DataDir, opts.MinFreeDisk
	p.frozen, p.history = &freeze.Reader{Dirs: p.cordons, Every: time.Second}, &history.Wakes{}
	p.metrics = metrics.New(opts.Version, p.snapshot)
	if opts.Store != nil {
		p.openStore(opts)
	}
	p.openEvents(opts)
	events := newEvents(p.metrics, opts.Log, p.events)
	p.keeper = keeper.New(keeper.Options{
		Policy: opts.Policy, Concurrent: opts.Concurrent, Refused: p.metrics.Refused, Observed: p.metrics.Observed, RoomMade: p.metrics.RoomMade,
		Frozen: p.keptAwake, AlarmAfter: opts.AlarmAfter, Log: opts.Log,
	})
	p.admission = admission.New(admission.Options{
		Limits: opts.Wakes, Available: p.unreserved(opts.Available), Room: p.keeper, Closed: p.closed, Meter: p.metrics, Log: opts.Log,
	})
	p.selfProbe = selfprobe.New(selfprobe.Options{Told: p.metrics.SelfProbed, Log: opts.Log})
	p.view = node.Open(node.Options{
		Dial:  func(address string) node.Shim { return shimclient.New(address) },
		Scan:  func() ([]node.Found, error) { return scan(opts.RunDir) },
		Roles: []func(context.Context, *node.Workload){p.keeper.Follow},
		OnEvent: func(w *node.Workload, event *shimv1.Event) {
			events.on(w, event)
			p.history.On(w.Key, event)
			p.admission.Changed(w.Key, event.GetState(), proxy.Need(w.Status()))
			p.slept(w, event)
		},
		OnGone: func(w *node.Workload) {
			if !p.closing.Load() {
				events.left(w)
			}
			events.forget(w)
			p.history.Forget(w.Key)
			p.admission.Gone(w.Key)
			if p.upload != nil {
				p.upload.Left(w.Key)
			}
		},
		ScanEvery: opts.ScanEvery, Log: opts.Log,
	})
	p.registry = &registry.Registry{View: p.view, Keep: opts.Orphans, Log: opts.Log, Proxy: proxy.Options{
		Dial: opts.Dial, Node: p.proxies, Limits: opts.Limits, AnswerHTTP: opts.AnswerHTTP, Admission: p.admission,
		WakeTimeout: opts.WakeTimeout, SilentAfter: opts.SilentAfter, Grace: opts.Grace, Meter: p.metrics, Log: opts.Log,
	}}
	p.loose = &loose{}
	if opts.CarryOn != nil {
		p.registry.CarryOn = p.loose.add
	}
	p.api = server.API{View: p.view, Judge: p.keeper, Queue: p.admission, History: p.history, Build: opts.Version, Started: time.Now()}
	if p.events != nil {
		p.api.Log = p.events
	}
	if p.peers != nil {
		p.api.Mover = p.peers.mover
	}
	p.describe(opts)
	o := pages.Options{Log: opts.Log}
	if p.upload != nil {
		p.api.Store, o.Store, p.rights.Claims = p.upload, p.upload, p.upload
		var err error
		if o.Secret, err = pages.Secret(p.upload.Dir()); err != nil {
			opts.Log.Warn("a load from the store that is under way when this daemon ends will not go on with the next one", "error", err)
		}
	}
	p.pages = pages.New(o)
	return p
}

// openEvents opens the log of transitions. Without it all else goes on.
func (p *parts) openEvents(opts Options) {
	if opts.DataDir == "" {
		return
	}
	var err error
	if p.events, err = eventlog.Open(eventlog.Options{Dir: filepath.Join(opts.DataDir, ".events")}); err != nil {
		opts.Log.Error("hibernatectl events has nothing to tell", "error", err)
	}
}

// describe has the API tell of the node.
func (p *parts) describe(opts Options) {
	p.api.Place = server.Place{DataDir: opts.DataDir, RunscDir: opts.RunscDir}
	if opts.Facts != nil {
		p.api.Facts = opts.Facts
		p.api.Place.Name = opts.Facts.Facts()[facts.Host]
	}
	if opts.Store != nil {
		p.api.Place.Name = opts.Store.Node
	}
}

// openStore makes the parts of the durable tier. Without a note of who this node is nothing can be claimed.
func (p *parts) openStore(opts Options) {
	s := opts.Store
	p.abandoned = &abandoned{runDir: opts.RunDir, reap: opts.Reap, answers: answers, log: opts.Log, told: make(map[string]bool)}
	o := upload.Options{
		DataDir: opts.DataDir, Open: s.Open, URL: s.URL, Keys: s.Keys, Node: s.Node, Keep: s.Keep, Rate: s.Rate, Quota: s.Quota, Relaxed: s.Relaxed,
		Shims: shims{list: func() []*node.Workload { return p.view.List() }, runDir: opts.RunDir, abandoned: p.abandoned}, Meter: p.metrics, Log: opts.Log,
		Room: p.room,
	}
	self, err := fence.LoadSelf(upload.Dir(opts.DataDir), s.Node)
	if err != nil {
		opts.Log.Error("who this node is can't be noted: workloads with an identity don't run here", "error", err)
	} else {
		p.fence = fence.New(fence.Options{
			Self: self, Dir: upload.Dir(opts.DataDir), RunDir: opts.RunDir, After: s.TakeOver, Facts: p.withContact(opts), Log: opts.Log,
			Tier: func() (*durable.Tier, error) { return p.upload.Tier() }, Claimed: func() bool { return p.upload.AnyClaimed() },
			Changed: func() { p.upload.TermChanged() },
		})
		o.Incarnation, o.Fence = self.Incarnation, p.fence
		if p.openPeers(opts, self); p.peers != nil {
			o.Peers = p.peers.client
		}
	}
	p.upload = upload.New(o)
	p.servePeers(opts, self)
}

// slept has a snapshot uploaded. One that was put to sleep for its stop has ended a moment later.
func (p *parts) slept(w *node.Workload, event *shimv1.Event) {
	if p.upload == nil || event.GetState() != "asleep" && event.GetState() != "ended" {
		return
	}
	s := w.Status()
	wishes := upload.Wishes{DeleteAfter: expire.After(s), Identity: s.GetIdentity()}
	wishes.Stopped = s.GetIdentity() != "" && (event.GetState() == "ended" || s.GetLastHibernate().GetReason() == "stop")
	for _, k := range s.GetSettings() {
		if k.GetKey() == "keep-snapshots" {
			wishes.Keep, _ = strconv.Atoi(k.GetValue())
		}
	}
	p.upload.Slept(w.Key, wishes)
}

// expired is told of sleepers that were ended since nobody wanted them.
func (p *parts) expired(key node.Key, asleep time.Time) {
	p.metrics.Expired("sleeper")
	if p.upload != nil {
		p.upload.Expired(key, asleep)
	}
}

// notes are for /healthz.
func (p *parts) notes() (all []string) {
	if note := p.cordon(); note != nil {
		all = append(all, note.String())
	}
	for _, note := range p.frozen.Notes() {
		all = append(all, note.String())
	}
	if p.upload != nil {
		all = append(all, "store: "+p.upload.Condition().Text())
	}
	return all
}

// cordon is the node's note that sleepers stay asleep; nil: there is none.
func (p *parts) cordon() *cordon.Note {
	note, err := cordon.Read(p.cordons...)
	if err != nil {
		return nil // what a shim reads counts
	}
	return note
}

// closed tells what wakes wait for on a cordoned node.
func (p *parts) closed() string {
	if note := p.cordon(); note != nil {
		return "hibernatectl uncordon: " + note.String()
	}
	return ""
}

// keptAwake tells which note keeps a workload from sleeping by itself; "" when none does.
func (p *parts) keptAwake(key node.Key) string {
	if note := p.frozen.Notes().Of(key.Namespace, key.ID); note != nil {
		return note.String() + ": hibernatectl unfreeze"
	}
	return ""
}

// close ends what assemble began. Registrations have ended.
func (p *parts) close() {
	p.closing.Store(true)
	p.view.Close()
	if p.events != nil {
		_ = p.events.Close()
	}
	p.proxies.Close()
}

// scan lists the shims that live.
func scan(runDir string) ([]node.Found, error) {
	records, err := handover.ListRecords(runDir)
	found := make([]node.Found, 0, len(records))
	for _, record := range records {
		if record.Alive() {
			found = append(found, node.Found{Key: node.Key{Namespace: record.Namespace, ID: record.ID}, Address: record.Address})
		}
	}
	return found, err
}

// freeBelow is the space that is left for root, in bytes; -1 where that is not known.
func freeBelow(dir string) int64 {
	var st unix.Statfs_t
	if dir == "" || unix.Statfs(dir, &st) != nil {
		return -1
	}
	return int64(st.Bfree) * st.Bsize
}

// room says whether so many bytes may be put below the data directory.
func (p *parts) room(bytes int64) error {
	free := freeBelow(p.dataDir)
	if free < 0 || free-bytes >= int64(p.minFreeDisk) {
		return nil
	}
	return fmt.Errorf("%d MiB are left below %s for a snapshot of %d MiB, and min-free-disk is %d MiB: make room there", free>>20, p.dataDir, bytes>>20, p.minFreeDisk>>20)
}

// snapshot counts what is in the view, for metrics.
func (p *parts) snapshot() metrics.Snapshot {
	wakes := p.admission.Stats()
	s := metrics.Snapshot{
		Workloads: make(map[metrics.Class]int), WakesWaiting: wakes.Waiting, WakesRunning: wakes.Running, MemoryLack: wakes.Lack,
	}
	s.DataFree, s.MinFree = freeBelow(p.dataDir), p.minFreeDisk
	s.Cordoned, s.Freezes = p.cordon() != nil, len(p.frozen.Notes())
	if p.upload != nil {
		u := p.upload.Stats()
		s.Store = &metrics.Store{
			Fences: u.Condition.Fences == upload.FencesYes, Usable: u.Condition.Err == nil, Lag: u.Lag, Waiting: u.Waiting + u.Running, Stuck: u.Stuck,
			Claimed: u.Claimed,
		}
		if p.fence != nil {
			s.Store.Lease = p.fence.Left()
		}
	}
	for _, w := range p.view.List() {
		judgement, _ := p.keeper.Judgement(w)
		state := w.State()
		if state == "" {
			state = "unknown"
		}
		s.Workloads[metrics.Class{State: state, Mode: string(judgement.Sample.Mode)}]++
		if w.Err() != nil {
			s.Unreachable++
		}
		if p.keeper.Broken(w) != "" {
			s.Unmeasured++
		}
		if state == "asleep" {
			s.ImageBytes += w.Status().GetImageBytes()
		} else {
			s.MemoryBytes += judgement.Memory
		}
		connections, _ := w.ProxyUse()
		s.Connections += connections
	}
	return s
}
