package sandbox

import (
	"context"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Connections to a sleeper from where probes come are taken by the shim itself, which knows best how the workload is, and looked
// at before anybody is woken. What is no probe wakes, and is passed on like all that is held.

// kubeletAgent begins the user agent of kubelet's probes.
const kubeletAgent = "kube-probe/"

// startProbing begins to answer probes, where the configuration has any. Without that all else works.
func (w *Workload) startProbing(ctx context.Context) {
	if w.link == nil || len(w.config.Probes) == 0 {
		return
	}
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.removed || w.probing != nil {
		return
	}
	q := w.questions()
	listeners, err := w.link.ListenProbes(ctx, q.sources())
	if err != nil {
		w.opts.Log.Warn("probes will wake it", "error", err)
		return
	}
	hold := w.config.HoldTimeout
	v := &visitors{proxy: wakeproxy.New(wakeproxy.Options{
		Waker: waker{w}, Dialer: dialer{w}, Grace: wakeproxy.Unlimited, Log: w.opts.Log, AnswerHTTP: w.config.RefuseWith == config.RefuseHTTP,
		Limits: wakeproxy.Limits{Connections: w.config.MaxConnections, HoldFor: hold, DialTimeout: hold},
	})}
	v.begin(listeners, w.opts.Log, func(ctx context.Context, ln *os.File) error { return v.proxy.ServeProbes(ctx, ln, 0, q) })
	if !w.whileRunning(func() { w.probing = v }) { // stopVisitors may have come before
		v.stop()
	}
}

// nodeAddresses are those from which kubelet's probes come.
func nodeAddresses() (list []netip.Prefix) {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() && p.Addr().Is6() { // a pod sees neither
			continue
		}
		list = append(list, netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
	}
	return list
}

// questions tell the probes of a workload.
type questions struct {
	w    *Workload
	node []netip.Prefix
}

func (w *Workload) questions() questions {
	q := questions{w: w}
	if slices.ContainsFunc(w.config.Probes, func(p config.Probe) bool { return p.Kubelet }) {
		q.node = nodeAddresses()
	}
	return q
}

// sources are the networks that probes come from.
func (q questions) sources() (list []netip.Prefix) {
	for _, p := range q.w.config.Probes {
		if p.Kubelet {
			list = append(list, q.node...)
		} else {
			list = append(list, p.From)
		}
	}
	return list
}

// Away implements wakeproxy.Probes.
func (q questions) Away() (wakeproxy.Health, bool) {
	answer, away := q.w.wellness()
	return wakeproxy.Health{State: answer.state, Well: answer.well}, away
}

// Probe implements wakeproxy.Probes.
func (q questions) Probe(asked wakeproxy.Question) bool {
	for _, p := range q.w.config.Probes {
		if q.fits(p, asked) {
			return true
		}
	}
	return false
}

func (q questions) fits(p config.Probe, asked wakeproxy.Question) bool {
	from := asked.Client.Addr()
	switch {
	case p.Kubelet:
		return contains(q.node, from) && (asked.Closed || strings.HasPrefix(asked.UserAgent, kubeletAgent))
	case p.Port != asked.Port || !p.From.Contains(from):
		return false
	case p.Path == "":
		return asked.Closed
	}
	return p.Path == asked.Path && (asked.Method == "GET" || asked.Method == "HEAD" || asked.GRPC())
}

func contains(list []netip.Prefix, a netip.Addr) bool {
	for _, p := range list {
		if p.Contains(a) {
			return true
		}
	}
	return false
}
