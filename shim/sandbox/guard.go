package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// blockers are the reasons why the workload can't hibernate now, the most lasting first. A manual request overrides
// the mode and the want of a network, nothing else. The caller holds w.mu.
func (w *Workload) blockers(manual bool) []*shimv1.Reason {
	var all []*shimv1.Reason
	add := func(when bool, code, detail string) {
		if when {
			all = append(all, reason(code, detail))
		}
	}
	c := w.root()
	if w.fixedReason != nil {
		all = append(all, w.fixedReason)
	}
	add(c.state == lifecycle.Created, "not-started", "the container is created and was not started yet")
	add(c.state == lifecycle.Stopped || c.state == lifecycle.Deleted, "stopped", "the container has ended")
	add(c.Terminal, "terminal", "a terminal is attached: its controlling process would not survive a restore")
	add(!w.config.AllowNetAdmin && hasCapability(w.spec, "CAP_NET_ADMIN"), "net-admin",
		"the process has CAP_NET_ADMIN: addresses, routes and rules that it sets would be lost")
	all = append(all, w.podBlockers()...)
	add(w.config.Mode == config.ModeManual && !manual, "mode-manual", "mode is manual: it sleeps only when asked")
	add(w.link == nil && w.fixedReason == nil && c.state == lifecycle.Running && !manual, "no-network",
		"the container has no network: nothing could wake it but exec and hibernatectl")
	add(w.anyPaused(), "paused", "a user paused the container")
	add(w.loading != nil, "loading", "its memory is still being loaded after a wake")
	add(w.busy > 0, "busy", "a request of containerd's is being served")
	add(w.toldNow(), byInput, "its standard input was written to a moment ago, and not read yet")
	if n := w.busyExecs(); n > 0 {
		add(true, "exec", fmt.Sprintf("processes started by exec run in it (%d), and would not survive a restore", n))
	}
	if n := w.forward.busy(w.opts.Now(), w.config.ExecIdleTimeout); n > 0 {
		add(true, byForward, fmt.Sprintf("%d connections to its loopback, as port-forward makes them, are open; they would not survive a restore", n))
	}
	for _, l := range w.liveLeases() {
		add(true, "lease", "lease "+strconv.Quote(l.GetName())+" keeps it awake")
	}
	return all
}

// busyExecs counts the execs that keep the workload awake. The caller holds w.mu.
func (w *Workload) busyExecs() uint32 {
	var n uint32
	for _, c := range w.containers {
		n += c.busyExecs(w.opts.Now(), w.config.ExecIdleTimeout)
	}
	return n
}

func hasCapability(spec *specs.Spec, name string) bool {
	p := spec.Process
	return p.Capabilities != nil && (slices.Contains(p.Capabilities.Effective, name) ||
		slices.Contains(p.Capabilities.Permitted, name) || slices.Contains(p.Capabilities.Bounding, name) && p.User.UID == 0)
}

// spaceFactor is how much more than the memory in use must be free on the disk, in percent.
const spaceFactor = 120

// checkSpace refuses to begin what could not be written.
func (w *Workload) checkSpace() error {
	free, err := w.local.Free()
	if err != nil {
		return fmt.Errorf("free space for a snapshot: %w", err)
	}
	if need := w.group.Memory()*spaceFactor/100 + w.config.MinFreeDisk; free < need {
		return &RefusedError{Reasons: []*shimv1.Reason{reason("disk", fmt.Sprintf(
			"a snapshot may need %d MiB, and %s has %d MiB free", need>>20, w.local.Dir(), free>>20))}}
	}
	return nil
}

// learnt is what the workload has open. Its ports of UDP are never all known: gVisor lists those of IPv4's sockets, and for
// IPv6's, which serve IPv4, too, it has an empty file. So no datagram is refused for a sleeper, and each wakes.
type learnt struct {
	ports []uint16 // of TCP; nil while they are not known
	only4 []uint16 // those of them that take no IPv6
	flows []network.Flow
}

// learnSockets asks inside on which ports the workload can be reached, and what connections it has. Ports that the
// configuration gives are taken as they are; then it does no harm if nothing can be asked inside.
func (w *Workload) learnSockets(ctx context.Context) (learnt, error) {
	given := w.config.Ports
	if given != nil && w.link == nil {
		return learnt{ports: given}, nil
	}
	sockets, err := w.sockets(ctx)
	switch {
	case err != nil && given != nil && ctx.Err() == nil:
		w.opts.Log.Warn("connections are not known, and their keep-alives will wake it", "error", err)
		return learnt{ports: given}, nil
	case err != nil:
		return learnt{}, err
	}
	found := learnt{ports: []uint16{}}
	six := map[uint16]bool{}
	for _, s := range sockets {
		switch {
		case s.Peer.IsValid():
			found.flows = append(found.flows, network.Flow{Own: netip.AddrPortFrom(s.Addr, s.Port), Peer: netip.AddrPortFrom(s.Peer, s.PeerPort)})
		case s.Proto == "tcp":
			found.ports = append(found.ports, s.Port)
			six[s.Port] = six[s.Port] || s.Addr.Is6() && !s.Addr.Is4In6()
		}
	}
	for port, takes := range six {
		if !takes {
			found.only4 = append(found.only4, port)
		}
	}
	if given != nil {
		found.ports = given
		return found, nil
	}
	slices.Sort(found.ports)
	found.ports = slices.Compact(found.ports)
	return found, nil
}

func (w *Workload) sockets(ctx context.Context) ([]runsc.Socket, error) {
	helper, err := os.Open(w.helper)
	if err != nil {
		return nil, fmt.Errorf("listening ports: %w", err)
	}
	defer helper.Close()
	sockets, err := w.runsc.Sockets(ctx, w.opts.ID, helper)
	if err != nil {
		return nil, fmt.Errorf("listening ports: %w", err)
	}
	return sockets, nil
}

// sharesNamespace names another live workload in the same network namespace, or nothing.
func (w *Workload) sharesNamespace() string {
	records, err := handover.ListRecords(w.config.RunDir)
	if err != nil {
		return ""
	}
	for _, r := range records {
		if r.Namespace == w.opts.Namespace && r.ID == w.opts.ID || !r.Alive() {
			continue
		}
		other, err := readState(filepath.Join(r.Bundle, "hibernate", "state.json"))
		if err == nil && other.Inode == w.holder.podInode && other.Linked {
			return r.Namespace + "/" + r.ID
		}
	}
	return ""
}

// isRefused says whether err is a reason rather than a failure.
func isRefused(err error) bool {
	var refused *RefusedError
	return errors.As(err, &refused)
}
