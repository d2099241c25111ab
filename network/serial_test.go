package network

import (
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

// bareLink is one of a pod that has an interface and nobody to talk to.
func bareLink(t *testing.T) *Link {
	t.Helper()
	testroot.Require(t)
	dir := t.TempDir()
	pod, inner := filepath.Join(dir, "pod"), filepath.Join(dir, "inner")
	for _, path := range []string{pod, inner} {
		must(t, NewNamespace(path))
		t.Cleanup(func() { must(t, RemoveNamespace(path)) })
	}
	ns, err := netns.GetFromPath(pod)
	must(t, err)
	defer ns.Close()
	h, err := netlink.NewHandleAt(ns)
	must(t, err)
	defer h.Close()
	attributes := netlink.NewLinkAttrs()
	attributes.Name = "eth0"
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: attributes, PeerName: "wire"}))
	eth0, err := h.LinkByName("eth0")
	must(t, err)
	must(t, h.AddrAdd(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 99, 0, 2), Mask: net.CIDRMask(24, 32)}}))
	must(t, h.LinkSetUp(eth0))
	a, err := Capture(t.Context(), pod, WithCNICache(dir))
	must(t, err)
	l, err := Open(t.Context(), Options{Pod: pod, Inner: inner, Attachment: a})
	must(t, err)
	t.Cleanup(func() { must(t, l.Close()) })
	return l
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// An opening, a closing and a mending that meet leave the gate, what is known of it, and the fast path agreed.
func TestGateIsChangedByOneAtATime(t *testing.T) {
	t.Parallel()
	l := bareLink(t)
	gates := []Gate{{Position: GateOpen}, {Position: GateHeld, Ports: []uint16{80}}, {Position: GateParked}}
	for i := range 100 {
		var all sync.WaitGroup
		for _, g := range append(gates, gates...) {
			all.Go(func() {
				if err := l.SetGate(t.Context(), g); err != nil {
					t.Error(err)
				}
			})
		}
		all.Go(func() {
			if err := l.repairTables(t.Context()); err != nil {
				t.Error(err)
			}
		})
		all.Wait()
		have, err := l.Gate(t.Context())
		must(t, err)
		if want := l.wanted(); !have.equal(want) || l.fast.open != (have.Position == GateOpen) {
			t.Fatalf("round %d: the gate is %v, to be %v, the fast path open: %v", i, have, want, l.fast.open)
		}
	}
}

// Mending doesn't bring back a position that was left meanwhile.
func TestMendingFollowsTheGate(t *testing.T) {
	l := bareLink(t)
	for i := range 100 {
		want := Gate{Position: []Position{GateOpen, GateParked}[i%2]}
		var all sync.WaitGroup
		change := func() error { return l.SetGate(t.Context(), want) }
		mend := func() error { return l.repairTables(t.Context()) }
		for _, do := range []func() error{mend, change, mend} {
			all.Go(func() {
				if err := do(); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if have, err := l.Gate(t.Context()); err != nil || have.Position != want.Position {
			t.Fatalf("round %d: the gate is %v, set to %v: %v", i, have, want, err)
		}
	}
}

// So for the neighbour.
func TestNeighbourIsChangedByOneAtATime(t *testing.T) {
	l := bareLink(t)
	for i := range 300 {
		var all sync.WaitGroup
		for range 3 {
			for _, change := range []func() error{
				func() error { return l.Connect(t.Context()) }, func() error { return l.Disconnect(t.Context()) },
			} {
				all.Go(func() {
					if err := change(); err != nil {
						t.Error(err)
					}
				})
			}
		}
		all.Wait()
		if there := l.checkNeighbour() == nil; there != l.fast.connected {
			t.Fatalf("round %d: a neighbour: %v, for the fast path: %v", i, there, l.fast.connected)
		}
	}
}

// An interface that went away between look and attachment is no reason to do without for good.
func TestFastPathIsTriedAgain(t *testing.T) {
	l := bareLink(t)
	if why := l.FastPath(); why != "" {
		t.Fatalf("the fast path: %s", why)
	}
	at, err := l.fastPlaces()
	must(t, err)
	at.primary = 1 << 20
	must(t, l.fast.programs.close())
	l.fast.programs = nil
	must(t, l.fast.place(l, at))
	if why := l.FastPath(); !strings.Contains(why, "for now") {
		t.Fatalf("the fast path: %q", why)
	}
	for _, r := range l.Mend(t.Context(), false) {
		if !r.OK {
			t.Errorf("%+v", r)
		}
	}
	if why := l.FastPath(); why != "" {
		t.Errorf("after another look: %s", why)
	}
}

func TestLastWords(t *testing.T) {
	for err, last := range map[error]bool{
		unix.EPERM: true, unix.EINVAL: true, unix.ENOSYS: true, unix.EOPNOTSUPP: true, ebpf.ErrNotSupported: true,
		&ebpf.VerifierError{Cause: unix.EACCES}: true, &ebpf.VerifierError{Cause: unix.ENOMEM}: false,
		unix.ENOMEM: false, unix.ENODEV: false, unix.ERANGE: false, unix.EAGAIN: false, errors.New("whatever"): false,
	} {
		if never(fmt.Errorf("attach: %w", err)) != last {
			t.Errorf("%v is the last word: %v", err, !last)
		}
	}
}
