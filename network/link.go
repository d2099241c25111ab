package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Link is the inner link of one workload. Its methods may be called from several
// goroutines; those that change something are idempotent. It holds descriptors
// only: what it made stays until Remove, across processes.
type Link struct {
	pod, inner *side
	node       *os.File // nil: this process's own
	attachment *Attachment
	ignore     []Filter
	probers    []netip.Prefix
	youth      time.Duration
	found      record // P's own sysctls as they were; set by Open
	fast       fastPath

	gateMu sync.Mutex // held while the gate or the neighbour changes, and the fast path with them

	keeperMu   sync.Mutex     // guards the below, and is held while it changes
	keeper     *keeper        // while the sandbox falls asleep, and sleeps
	keeperGone sync.WaitGroup // sockets that are being closed
	earlyGone  sync.WaitGroup // likewise, of early

	mu    sync.Mutex // guards the below
	gate  Gate       // as last set
	base  Counters   // of tables that are gone
	used  Counters   // of connections that were found to be no probe's
	last  Counters   // last reading of the present table
	local []local    // where P's own connections go
	early *early     // while the sandbox is restored

	device int // index of the inner end that the sandbox was given; 0 before there is one
}

// Options name the two namespaces and what CNI gave the pod.
type Options struct {
	Pod, Inner string // paths; opened once, and kept
	Attachment *Attachment
	NoFastPath bool     // all packets go through P's own stack
	Ignore     []Filter // what is no use

	// Probes are where connections come from that may be probes: in the first Youth (10 s by default) they are no use by themselves; see Saids.
	Probes []netip.Prefix
	Youth  time.Duration

	Node string // path of the node's namespace; "" for this process's
}

// Open makes the link, or adopts one that another process left, mending what is
// missing. The gate is left as found, or opened when there is none. The sandbox
// is reached after Connect.
//
// Errors: ErrNoNetwork, ErrHostNetwork, ErrShared (hib0 leads to another I).
func Open(ctx context.Context, o Options) (*Link, error) {
	if o.Attachment == nil || len(o.Attachment.Addresses) == 0 {
		return nil, ErrNoNetwork
	}
	l := &Link{attachment: o.Attachment, ignore: o.Ignore, probers: o.Probes, youth: cmp.Or(o.Youth, youth)}
	switch {
	case o.NoFastPath:
		l.fast.refused = "switched off"
	case o.Attachment.MAC == "":
		l.fast.refused = "the pod's interface has no Ethernet frames"
	case o.Attachment.Translated():
		l.fast.refused = o.Attachment.whyTranslated()
	}
	err := l.open(ctx, o)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open link of %s: %w", o.Pod, err), l.Close())
	}
	return l, nil
}

func (l *Link) open(ctx context.Context, o Options) (err error) {
	if l.pod, err = openSide(o.Pod); err != nil {
		return err
	}
	if l.inner, err = openSide(o.Inner); err != nil {
		return err
	}
	if o.Node != "" {
		if l.node, err = openNamespace(o.Node); err != nil {
			return err
		}
	}
	for _, s := range []*side{l.pod, l.inner} {
		own, err := isOwn(s.ns)
		if err != nil {
			return err
		}
		if own {
			return ErrHostNetwork
		}
	}
	return l.build(ctx)
}

// build brings every stage into place. The link's comes first, since it knows
// how P was found; the inner one before anything can reach I.
func (l *Link) build(ctx context.Context) error {
	if err := l.repairLink(); err != nil {
		return err
	}
	for _, s := range l.stages(ctx) {
		if s.check() == nil {
			continue
		}
		if err := s.repair(); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	if err := l.adoptGate(ctx); err != nil {
		return err
	}
	return l.Quicken(ctx)
}

func (l *Link) adoptGate(ctx context.Context) error {
	if l.checkDeaf(ctx) != nil {
		if err := l.deafen(ctx); err != nil {
			return err
		}
	}
	g, err := l.Gate(ctx)
	if errors.Is(err, ErrNoGate) {
		return l.SetGate(ctx, Gate{Position: GateOpen})
	}
	if err != nil {
		return err
	}
	l.mu.Lock()
	l.gate = g
	l.mu.Unlock()
	if l.checkNeighbour() == nil {
		if err := l.fast.nowConnected(); err != nil {
			return err
		}
	}
	if l.checkGate(ctx) == nil {
		return l.followGate(g)
	}
	return l.SetGate(ctx, g)
}

// Attachment is what the link was opened with.
func (l *Link) Attachment() *Attachment { return l.attachment }

// Pod is P's namespace, to hand over with the listeners. It is closed with the
// Link.
func (l *Link) Pod() *os.File { return l.pod.ns }

// Address is the pod's (first) address that the link carries, of IPv4 if there is one.
func (l *Link) Address() netip.Addr { return l.attachment.carried()[0] }

// Dial connects to a port of the sandbox for a client; see the function Dial.
func (l *Link) Dial(ctx context.Context, client netip.AddrPort, port uint16) (*net.TCPConn, error) {
	return Dial(ctx, l.pod.ns, client, netip.AddrPortFrom(l.Address(), port))
}

// Close gives the descriptors up. It changes nothing but that the fast path is gone with them.
func (l *Link) Close() error {
	l.ForgetEarly()
	l.earlyGone.Wait()
	errs := []error{l.fast.close(), l.forgetKeeper()}
	for _, s := range []*side{l.pod, l.inner} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	l.pod, l.inner = nil, nil
	if l.node != nil {
		errs = append(errs, l.node.Close())
	}
	return errors.Join(errs...)
}
