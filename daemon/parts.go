package daemon

import (
	"time"

	"context"
	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon/keeper"
	"github.com/hibernate-runtime/hibernate/daemon/metrics"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/proxy"
	"github.com/hibernate-runtime/hibernate/daemon/registry"
	"github.com/hibernate-runtime/hibernate/daemon/server"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// parts are what Run joins.
type parts struct {
	view     *node.View
	keeper   *keeper.Keeper
	metrics  *metrics.Metrics
	proxies  *wakeproxy.Node
	registry *registry.Registry
	api      server.API
}

// assemble builds the parts and opens the view: from here on shims are watched and sampled.
func assemble(opts Options) *parts {
	p := &parts{proxies: wakeproxy.NewNode(0)}
	p.metrics = metrics.New(opts.Version, p.snapshot)
	events := newEvents(p.metrics, opts.Log)
	p.keeper = keeper.New(keeper.Options{
		Policy: opts.Policy, Concurrent: opts.Concurrent, Refused: p.metrics.Refused, Log: opts.Log,
	})
	p.view = node.Open(node.Options{
		Dial:    func(address string) node.Shim { return shimclient.New(address) },
		Scan:    func() ([]node.Found, error) { return scan(opts.RunDir) },
		Roles:   []func(context.Context, *node.Workload){p.keeper.Follow},
		OnEvent: events.on, ScanEvery: opts.ScanEvery, Log: opts.Log,
	})
	p.registry = &registry.Registry{View: p.view, Keep: opts.Orphans, Log: opts.Log, Proxy: proxy.Options{
		Dial: opts.Dial, Node: p.proxies, Limits: opts.Limits, WakeTimeout: opts.WakeTimeout, Grace: opts.Grace,
		Meter: p.metrics, Log: opts.Log,
	}}
	p.api = server.API{View: p.view, Judge: p.keeper, Build: opts.Version, Started: time.Now()}
	return p
}

// close ends what assemble began. Registrations have ended.
func (p *parts) close() {
	p.view.Close()
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

// snapshot counts what is in the view, for metrics.
func (p *parts) snapshot() metrics.Snapshot {
	s := metrics.Snapshot{Workloads: make(map[metrics.Class]int)}
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
