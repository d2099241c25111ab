package network_test

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"

	"github.com/hibernate-runtime/hibernate/network"
)

var rungNames = []string{"link", "inner", "route", "neighbour", "gate", "policy", "fast path", "netstack", "accepts"}

func TestLadderWhenAllIsWell(t *testing.T) {
	_, l, _ := awake(t)
	var took []time.Duration
	for range 21 {
		start := time.Now()
		rungs := l.Check(t.Context(), []uint16{echoPort})
		took = append(took, time.Since(start))
		for i, r := range rungs {
			if r.Name != rungNames[i] || !r.OK || r.Repaired {
				t.Fatalf("%+v", r)
			}
		}
	}
	slices.Sort(took)
	t.Logf("ladder: p50 %v, max %v", took[len(took)/2], took[len(took)-1])
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		t.Logf("  %-10s %v", r.Name, r.Took)
	}
}

// breakage is a way to break the link. It is named by its rung, mended, and the traffic goes
// on; also's rungs may be broken with it.
type breakage struct {
	name, rung string
	also       []string
	do         func(t *testing.T, w *world)
}

var breaks = []breakage{
	{"link down", "link", []string{"route", "neighbour", "inner"}, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.LinkSetDown(get(t, h, "hib0")))
	}},
	{"gateway address deleted", "link", []string{"route", "neighbour"}, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.AddrDel(get(t, h, "hib0"), &netlink.Addr{IPNet: hostNet(addrOf("169.254.42.1"))}))
	}},
	{"wrong MTU", "link", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.LinkSetMTU(get(t, h, "hib0"), 1280))
	}},
	{"inner end down", "inner", nil, func(t *testing.T, w *world) {
		h := handle(t, w.inner)
		must(t, h.LinkSetDown(get(t, h, "eth0")))
	}},
	{"inner kernel not mute", "inner", nil, func(t *testing.T, w *world) { flushRuleset(t, w.inner) }},
	{"route to the sandbox deleted", "route", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.RouteDel(&netlink.Route{Dst: hostNet(podAddr), Table: 4242001, Scope: netlink.SCOPE_LINK}))
	}},
	{"default route deleted", "route", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.RouteDel(&netlink.Route{Gw: routerAddr.AsSlice()}))
	}},
	{"neighbour deleted", "neighbour", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.NeighDel(&netlink.Neigh{LinkIndex: get(t, h, "hib0").Attrs().Index, IP: podAddr.AsSlice()}))
	}},
	{"neighbour wrong", "neighbour", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		must(t, h.NeighSet(&netlink.Neigh{
			LinkIndex: get(t, h, "hib0").Attrs().Index, IP: podAddr.AsSlice(), State: netlink.NUD_PERMANENT,
			HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
		}))
	}},
	{"nft flushed", "gate", nil, func(t *testing.T, w *world) { flushRuleset(t, w.pod) }},
	{"gate's table deleted", "gate", nil, func(t *testing.T, w *world) {
		c := nft(t, w.pod)
		c.DelTable(&nftables.Table{Name: "hibernate", Family: nftables.TableFamilyINet})
		must(t, c.Flush())
	}},
	{"gate's chain emptied", "gate", nil, func(t *testing.T, w *world) {
		c := nft(t, w.pod)
		table := &nftables.Table{Name: "hibernate", Family: nftables.TableFamilyINet}
		c.FlushChain(&nftables.Chain{Name: "to-sandbox", Table: table})
		must(t, c.Flush())
	}},
	{"gate's set emptied", "gate", nil, func(t *testing.T, w *world) {
		c := nft(t, w.pod)
		table := &nftables.Table{Name: "hibernate", Family: nftables.TableFamilyINet}
		c.FlushSet(&nftables.Set{Name: "addresses", Table: table})
		must(t, c.Flush())
	}},
	{"routing rule deleted", "policy", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		rule, mask := netlink.NewRule(), uint32(0x30000000)
		rule.Priority, rule.Mark, rule.Mask, rule.Table = 10, 0x10000000, &mask, 4242001
		must(t, h.RuleDel(rule))
	}},
	{"kernel's rule is back", "policy", nil, func(t *testing.T, w *world) {
		h := handle(t, w.pod)
		rule := netlink.NewRule()
		rule.Priority, rule.Table = 0, 255
		must(t, h.RuleAdd(rule))
	}},
	{"inward program taken off", "fast path", nil, func(t *testing.T, w *world) { takeOff(t, w.pod, "eth0") }},
	{"outward program taken off", "fast path", nil, func(t *testing.T, w *world) { takeOff(t, w.pod, "hib0") }},
	{"muting program taken off", "fast path", nil, func(t *testing.T, w *world) { takeOff(t, w.inner, "eth0") }},
	{"fast path switched off", "fast path", nil, func(t *testing.T, w *world) { switchOff(t, w.pod, "eth0") }},
	{"forwarding off", "policy", nil, func(t *testing.T, w *world) {
		inside(t, w.pod, func() (any, error) {
			return nil, os.WriteFile("/proc/sys/net/ipv4/conf/hib0/forwarding", []byte("0"), 0)
		})
	}},
}

// The third time as the first.
func TestLadderNamesAndMends(t *testing.T) {
	t.Parallel()
	for _, b := range breaks {
		t.Run(b.name, func(t *testing.T) {
			w, l, s := awake(t)
			for cycle := range 3 {
				if cycle > 0 {
					asleep(t, l, s, held(echoPort))
					woken(t, l, s)
				}
				b.do(t, w)
				b.mended(t, w, l)
			}
		})
	}
}

func (b *breakage) mended(t *testing.T, w *world, l *network.Link) {
	t.Helper()
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		broken := r.Name == b.rung
		if !r.OK {
			t.Errorf("not mended: %+v", r)
		}
		if broken != r.Repaired && !(r.Repaired && slices.Contains(b.also, r.Name)) {
			t.Errorf("%+v", r)
		}
		if broken {
			t.Logf("%s: %s (%v)", r.Name, r.Detail, r.Took)
		}
	}
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "mended", answerTime))
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK || r.Repaired {
			t.Errorf("second look: %+v", r)
		}
	}
}

func TestLadderTellsOfTheSandbox(t *testing.T) {
	_, l, s := awake(t)
	rungs := l.Check(t.Context(), []uint16{closedPort})
	if r := rungs[8]; r.OK || !strings.Contains(r.Detail, "refused") {
		t.Errorf("nobody listens: %+v", r)
	}
	if r := rungs[7]; !r.OK {
		t.Errorf("netstack answers: %+v", r)
	}
	s.freeze()
	defer s.thaw()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	for _, r := range l.Check(ctx, []uint16{echoPort})[7:] {
		if r.OK || r.Repaired || r.Detail == "" {
			t.Errorf("a dead sandbox: %+v", r)
		}
	}
}

// A listener that the workload ends is named, each time, and one that it opens again is not; nobody repairs anything.
func TestLadderTellsOfEndedListeners(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		_, l, s := awakeIn(t, w)
		for cycle := range 3 {
			if cycle > 0 {
				asleep(t, l, s, held(echoPort))
				woken(t, l, s)
			}
			other := inside(t, s.ns, func() (net.Listener, error) { return net.Listen(f.tcp(), ":7200") })
			ports := []uint16{echoPort, 7200}
			if r := l.CheckListeners(t.Context(), ports); r.Name != "listeners" || !r.OK || r.Repaired {
				t.Errorf("both listen: %+v", r)
			}
			must(t, other.Close())
			if r := l.CheckListeners(t.Context(), ports); r.OK || r.Repaired || !strings.HasSuffix(r.Detail, "listeners of ports [7200]") {
				t.Errorf("one has ended: %+v", r)
			}
		}
	})
}

// The probe's connection is reset while it is half open.
func TestLadderIsNotSeenByTheWorkload(t *testing.T) {
	_, l, s := awake(t)
	ln := inside(t, s.ns, func() (net.Listener, error) { return net.Listen("tcp4", ":7200") })
	defer ln.Close()
	for range 5 {
		if r := l.Check(t.Context(), []uint16{7200})[8]; !r.OK {
			t.Fatalf("%+v", r)
		}
	}
	must(t, ln.(*net.TCPListener).SetDeadline(time.Now().Add(50*time.Millisecond)))
	if c, err := ln.Accept(); err == nil {
		t.Fatalf("the workload saw a connection from %s", c.RemoteAddr())
	}
}

func TestLadderWorksInEveryPosition(t *testing.T) {
	_, l, _ := awake(t)
	for _, g := range []network.Gate{held(echoPort), parked, opened} {
		must(t, l.SetGate(t.Context(), g))
		for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
			if !r.OK || r.Repaired {
				t.Errorf("%s: %+v", g.Position, r)
			}
		}
	}
}
