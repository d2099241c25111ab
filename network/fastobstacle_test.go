package network_test

import (
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// What others may put into P so that the fast path must stay off; undo takes it away again.
var obstacles = []struct {
	name string
	put  func(t *testing.T, w *world) (undo func())
}{
	{"nft rule", func(t *testing.T, w *world) func() {
		c := nft(t, w.pod)
		table := c.AddTable(&nftables.Table{Name: "theirs", Family: nftables.TableFamilyINet})
		chain := c.AddChain(&nftables.Chain{
			Table: table, Name: "forward", Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter,
		})
		c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{&expr.Counter{}}})
		must(t, c.Flush())
		return func() {
			c.DelTable(table)
			must(t, c.Flush())
		}
	}},
	{"tc qdisc", func(t *testing.T, w *world) func() {
		h := handle(t, w.pod)
		q := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
			LinkIndex: get(t, h, "eth0").Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
		}}
		must(t, h.QdiscAdd(q))
		return func() { must(t, h.QdiscDel(q)) }
	}},
	{"IPsec policy", func(t *testing.T, w *world) func() {
		p := &netlink.XfrmPolicy{Src: hostNet(podAddr), Dst: hostNet(routerAddr), Dir: netlink.XFRM_DIR_OUT, Action: netlink.XFRM_POLICY_BLOCK}
		inside(t, w.pod, func() (any, error) { return nil, netlink.XfrmPolicyAdd(p) })
		return func() { inside(t, w.pod, func() (any, error) { return nil, netlink.XfrmPolicyDel(p) }) }
	}},
	{"IPsec policy of IPv6", func(t *testing.T, w *world) func() {
		p := &netlink.XfrmPolicy{Src: hostNet(six.pod), Dst: hostNet(six.router), Dir: netlink.XFRM_DIR_OUT, Action: netlink.XFRM_POLICY_BLOCK}
		inside(t, w.pod, func() (any, error) { return nil, netlink.XfrmPolicyAdd(p) })
		return func() { inside(t, w.pod, func() (any, error) { return nil, netlink.XfrmPolicyDel(p) }) }
	}},
	{"tcx program", func(t *testing.T, w *world) func() {
		l := attachTo(t, w.pod, "eth0")
		return func() { must(t, l.Close()) }
	}},
}

func TestFastPathGivesWayToOthers(t *testing.T) {
	t.Parallel()
	for _, o := range obstacles {
		t.Run("before: "+o.name, func(t *testing.T) {
			w := newWorld(t)
			undo := o.put(t, w)
			_, l, _ := awakeIn(t, w)
			givesWay(t, w, l, undo)
		})
		t.Run("meanwhile: "+o.name, func(t *testing.T) {
			w, l, _ := awake(t)
			undo := o.put(t, w)
			counters(t, l) // the idle policy reads them each second
			givesWay(t, w, l, undo)
		})
		t.Run("found by a wake: "+o.name, func(t *testing.T) {
			w, l, _ := awake(t)
			must(t, l.SetGate(t.Context(), parked))
			undo := o.put(t, w)
			must(t, l.SetGate(t.Context(), opened))
			must(t, l.Quicken(t.Context()))
			givesWay(t, w, l, undo)
		})
	}
}

func givesWay(t *testing.T, w *world, l *network.Link, undo func()) {
	t.Helper()
	if why := l.FastPath(); !strings.Contains(why, "others'") {
		t.Fatalf("the fast path's reason is %q", why)
	}
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	if n := spoken(t, w, c); n < 20 {
		t.Fatalf("P forwarded %d packets only", n)
	}
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK || r.Repaired {
			t.Errorf("%+v", r)
		}
	}
	undo()
	counters(t, l)
	if why := l.FastPath(); why != "" {
		t.Fatalf("without them: %q", why)
	}
	spoken(t, w, c)
	if n := spoken(t, w, c); n > 5 {
		t.Fatalf("P forwarded %d packets", n)
	}
}

// spoken is how many packets P forwards for ten lines and their echoes.
func spoken(t *testing.T, w *world, c net.Conn) int {
	t.Helper()
	before := forwarded(t, w)
	for range 10 {
		must(t, say(c, "a line", answerTime))
	}
	return forwarded(t, w) - before
}

// An interface that CNI made anew is not the one that the programs know. Until the ladder is climbed, packets go through P.
func TestFastPathIsNotForAnotherInterface(t *testing.T) {
	w, l, _ := awake(t)
	h, node := handle(t, w.pod), handle(t, w.node)
	mac := get(t, h, "eth0").Attrs().HardwareAddr // peers know it
	must(t, h.LinkDel(get(t, h, "eth0")))
	pair(t, w.node, "again", w.pod, "eth0", mac)
	must(t, node.LinkSetMaster(get(t, node, "again"), get(t, node, "br0")))
	addAddr(t, h, "eth0", podAddr, 24)
	must(t, h.RouteAdd(&netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Gw: routerAddr.AsSlice()}))
	counters(t, l)
	if why := l.FastPath(); !strings.Contains(why, "gone") {
		t.Fatalf("the fast path's reason is %q", why)
	}
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK {
			t.Errorf("%+v", r)
		}
	}
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	spoken(t, w, c)
	if n := spoken(t, w, c); n > 5 || l.FastPath() != "" {
		t.Fatalf("P forwarded %d packets: %s", n, l.FastPath())
	}
}

// A kernel that has no more room at an interface refuses: packets go through P, and the reason is told.
func TestFastPathRefused(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.slow = true
	must(t, w.open(t).Close())
	for range 63 { // as many as the kernel takes
		l := attachTo(t, w.pod, "hib0")
		defer l.Close()
	}
	w.slow = false
	w, l, _ := awakeIn(t, w)
	if why := l.FastPath(); !strings.Contains(why, "refused") {
		t.Fatalf("the fast path's reason is %q", why)
	}
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	if n := spoken(t, w, c); n < 20 {
		t.Fatalf("P forwarded %d packets only", n)
	}
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK || r.Repaired {
			t.Errorf("%+v", r)
		}
	}
}

// A gate that opens waits for nobody to be looked for: until that is done, packets take P's way.
func TestAGateOpensBeforeObstaclesAreLookedFor(t *testing.T) {
	w, l, _ := awake(t)
	must(t, l.SetGate(t.Context(), parked))
	must(t, l.SetGate(t.Context(), opened))
	if why := l.FastPath(); !strings.Contains(why, "just opened") {
		t.Fatalf("the fast path's reason is %q", why)
	}
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	if n := spoken(t, w, c); n < 20 {
		t.Fatalf("P forwarded %d packets only", n)
	}
	must(t, l.Quicken(t.Context()))
	if n := spoken(t, w, c); n > 5 || l.FastPath() != "" {
		t.Fatalf("P forwarded %d packets: %q", n, l.FastPath())
	}
}

// What can't be looked at is no reason to keep a gate closed, but one to take P's way.
func TestUnseenObstaclesKeepNoGateClosed(t *testing.T) {
	w, l, _ := awake(t)
	must(t, l.SetGate(t.Context(), parked))
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Max: limit.Max})) // nothing can be opened
	err := errors.Join(l.SetGate(t.Context(), opened), l.Quicken(t.Context()))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, err)
	if why := l.FastPath(); !strings.Contains(why, "can't be told") {
		t.Fatalf("the fast path's reason is %q", why)
	}
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "through P", answerTime))
	counters(t, l)
	if why := l.FastPath(); why != "" {
		t.Fatalf("when it is seen again: %q", why)
	}
}

// attachTo puts a program at an interface's ingress that passes all on.
func attachTo(t *testing.T, ns, name string) link.Link {
	t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.SchedCLS, License: "Dual BSD/GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, -1), asm.Return()},
	})
	must(t, err)
	defer p.Close()
	index := get(t, handle(t, ns), name).Attrs().Index
	return inside(t, ns, func() (link.Link, error) {
		return link.AttachTCX(link.TCXOptions{Interface: index, Program: p, Attach: ebpf.AttachTCXIngress})
	})
}

// attached lists the programs at an interface's ingress.
func attached(t *testing.T, ns, name string) []link.AttachedProgram {
	t.Helper()
	index := get(t, handle(t, ns), name).Attrs().Index
	return inside(t, ns, func() ([]link.AttachedProgram, error) {
		r, err := link.QueryPrograms(link.QueryOptions{Target: index, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return nil, err
		}
		return r.Programs, nil
	})
}

func programs(t *testing.T, ns, name string) int { return len(attached(t, ns, name)) }

// takeOff detaches what is at an interface's ingress.
func takeOff(t *testing.T, ns, name string) {
	t.Helper()
	for _, p := range attached(t, ns, name) {
		id, _ := p.LinkID()
		l, err := link.NewFromID(id)
		must(t, err)
		must(t, l.Detach())
		must(t, l.Close())
	}
}

// switchOff writes the switch that the program at an interface looks at.
func switchOff(t *testing.T, ns, name string) {
	t.Helper()
	p, err := ebpf.NewProgramFromID(attached(t, ns, name)[0].ID)
	must(t, err)
	defer p.Close()
	info, err := p.Info()
	must(t, err)
	ids, _ := info.MapIDs()
	m, err := ebpf.NewMapFromID(ids[0])
	must(t, err)
	defer m.Close()
	must(t, m.Put(uint32(0), uint32(0)))
}
