package sandbox

import (
	"context"
	"net/netip"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// While the workload is awake, new connections from where probes come are no use by themselves. What their clients say first tells
// probes from others, as for a sleeper, but from copies of the packets: nobody stands in their way.

const (
	// judgedFor is how long a connection is known to be a probe's; the rules know it no longer.
	judgedFor = 10 * time.Second
	// saidAtMost is how much a client may say before it shows what it asks, and openAtMost how many are followed; others are use.
	saidAtMost = 8 << 10
	openAtMost = 256
)

// beginning is what is known of a connection.
type beginning struct {
	said  []byte
	probe bool
	until time.Time
}

// judge tells the connections of probes from others.
type judge struct {
	probe func(wakeproxy.Question) bool
	now   func() time.Time
	open  map[netip.AddrPort]*beginning
}

// judgeProbes has what is no probe count as use, until ctx ends.
func (w *Workload) judgeProbes(ctx context.Context) {
	j := &judge{probe: w.questions().Probe, now: w.opts.Now, open: map[netip.AddrPort]*beginning{}}
	err := w.link.Saids(ctx, func(s network.Said) {
		if !j.used(s) {
			return
		}
		said := s.Use.String()
		w.mu.Lock()
		w.lastUse = said
		w.mu.Unlock()
		if err := w.link.Used(ctx, s); err != nil && ctx.Err() == nil {
			w.opts.Log.Warn("a connection that is no probe's counts only after a while", "error", err)
		}
	})
	if err != nil {
		w.opts.Log.Warn("connections from where probes come count only after a while", "error", err)
	}
}

// used says whether what a client has said, from the beginning, is no probe's.
func (j *judge) used(s network.Said) bool {
	b := j.beginning(s.Peer)
	if b == nil {
		return true
	}
	if b.probe {
		return false
	}
	b.said = append(b.said, s.Data...)
	q := wakeproxy.Question{Client: s.Peer, Port: s.Own.Port()}
	shown := q.Read(b.said)
	switch {
	case !shown && len(b.said) < saidAtMost:
		return false
	case shown && j.probe(q):
		b.said, b.probe = nil, true
		return false
	}
	delete(j.open, s.Peer)
	return true
}

// beginning is that of a client; nil when too many are followed.
func (j *judge) beginning(client netip.AddrPort) *beginning {
	now := j.now()
	if b := j.open[client]; b != nil && now.Before(b.until) {
		return b
	}
	if len(j.open) >= openAtMost {
		for c, b := range j.open {
			if !now.Before(b.until) {
				delete(j.open, c)
			}
		}
	}
	if len(j.open) >= openAtMost {
		return nil
	}
	b := &beginning{until: now.Add(judgedFor)}
	j.open[client] = b
	return b
}
