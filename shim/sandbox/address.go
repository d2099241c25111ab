package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A container that was left asleep, or is made from a checkpoint, may go on in another pod: with another address, another
// hardware address, on another node. It keeps the address it knows, and the link translates; its old connections, which nobody
// can answer any more, are ended; and the neighbours hear where the address is now.

// origin is where a snapshot's workload was reached.
type origin struct {
	attachment network.Attachment
	node       string
	copied     bool // it is another workload's, which has the connections
}

// findOrigin reads it from the snapshot that Start restores; nil when there is none, or it doesn't tell.
func (w *Workload) findOrigin() (*origin, error) {
	m, ok, err := w.toRestore()
	if !ok || err != nil {
		return nil, err
	}
	return originOf(m)
}

// originOf is where a manifest's workload was reached; nil when it doesn't tell.
func originOf(m snapshot.Manifest) (*origin, error) {
	if len(m.Attachment) == 0 {
		return nil, nil
	}
	o := &origin{node: m.Host.Node, copied: m.Origin != nil}
	if err := json.Unmarshal(m.Attachment, &o.attachment); err != nil {
		return nil, fmt.Errorf("the snapshot's network: %w", err)
	}
	if len(o.attachment.Addresses) == 0 {
		return nil, nil
	}
	return o, nil
}

func (w *Workload) toRestore() (m snapshot.Manifest, ok bool, err error) {
	if w.export != nil {
		m, ok = w.export.Manifest()
		return m, ok, nil
	}
	if w.state != lifecycle.Asleep { // before Start nobody else changes it
		return m, false, nil
	}
	w.mu.Lock()
	f := w.foreseen
	w.mu.Unlock()
	if f != nil && f.open != nil {
		return f.open.manifest, true, nil
	}
	s, err := w.local.Current()
	if errors.Is(err, snapshot.ErrNone) || errors.Is(err, snapshot.ErrCorrupt) { // the wake tells
		return m, false, nil
	}
	if err != nil {
		return m, false, err
	}
	return s.Manifest(), true, nil
}

// readdressed says whether an address has changed.
func (o *origin) readdressed(now *network.Attachment) bool {
	return o != nil && !slices.Equal(addressesOf(&o.attachment), addressesOf(now))
}

// unsettled says whether what is restored has connections that must be ended before anything of them leaves the pod.
func (o *origin) unsettled(now *network.Attachment) bool {
	return o != nil && (o.copied || o.readdressed(now))
}

// why says what has changed; empty: nothing that a neighbour could notice.
func (o *origin) why(now *network.Attachment, node string) string {
	var list []string
	for _, c := range []struct{ what, before, after string }{
		{"address", strings.Join(addressesOf(&o.attachment), " "), strings.Join(addressesOf(now), " ")},
		{"hardware address", o.attachment.MAC, now.MAC},
		{"node", o.node, node},
	} {
		if c.before != c.after {
			list = append(list, fmt.Sprintf("%s was %s, is %s", c.what, c.before, c.after))
		}
	}
	return strings.Join(list, "; ")
}

func addressesOf(a *network.Attachment) []string {
	var list []string
	for _, p := range a.Addresses {
		list = append(list, p.Addr().String())
	}
	slices.Sort(list)
	return list
}

// mute lets nothing out of the pod until the gate opens.
func (w *Workload) mute(ctx context.Context) error {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	return w.setGate(ctx, network.Gate{Position: network.GateParked})
}

// settle ends the connections that a workload had by addresses which its pod has no more, or that are another's. It comes between the restore, which
// begins muted, and the opening of the gate, so that no peer hears of it. What fails is told, and hinders no wake.
func (w *Workload) settle(ctx context.Context) error {
	earlier, whose := &w.origin.attachment, "the former address"
	if w.origin.copied {
		earlier, whose = nil, "the workload that it is a copy of"
	}
	found, err := w.learnSockets(ctx)
	n := 0
	if err == nil {
		n, err = w.link.ResetConnections(ctx, found.flows, earlier)
	}
	w.forget(ctx)
	w.outward("connections", fmt.Sprintf("%d of %s were ended", n, whose), n > 0, err)
	return nil
}

// forget removes what the node tracks of an earlier holder of the pod's addresses. What fails is told, and hinders no start.
func (w *Workload) forget(ctx context.Context) {
	if w.link == nil {
		return
	}
	n, err := w.link.ForgetEarlier(ctx)
	w.outward("conntrack", fmt.Sprintf("%d connections of an earlier holder of the address were still tracked by the node", n), n > 0, err)
}

// announcePod tells the pod's neighbours what has changed. It comes after the gate has opened.
func (w *Workload) announcePod(ctx context.Context) {
	o := w.origin
	w.origin = nil
	if o == nil {
		return
	}
	if why := o.why(w.attachment, w.hostFacts().Node); why != "" {
		w.outward("announced", why, true, w.link.Announce(ctx))
	}
}

// mostMended bounds what Status tells of.
const mostMended = 8

// outward notes what was done about the pod's surroundings, if it was needed or went wrong.
func (w *Workload) outward(name, detail string, needed bool, err error) {
	if err != nil {
		detail = err.Error()
	}
	if needed || err != nil {
		w.mended(network.Rung{Name: name, OK: err == nil, Repaired: err == nil, Detail: detail})
	}
}

// mended tells of rungs that belong to no wake: in the log, in Status, and to who watches.
func (w *Workload) mended(rungs ...network.Rung) {
	w.mu.Lock()
	defer w.mu.Unlock()
	told := false
	for _, r := range rungs {
		if r.OK && !r.Repaired {
			continue
		}
		told = true
		w.opts.Log.Warn("network", "rung", r.Name, "ok", r.OK, "repaired", r.Repaired, "detail", r.Detail)
		w.mends = append(w.mends, &shimv1.Rung{Name: r.Name, Ok: r.OK, Repaired: r.Repaired, Detail: r.Detail, AtUnixMs: w.opts.Now().UnixMilli()})
	}
	w.mends = w.mends[max(0, len(w.mends)-mostMended):]
	if told {
		w.announce(nil)
	}
}
