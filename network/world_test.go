package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
	"github.com/hibernate-runtime/hibernate/network"
)

var (
	podAddr    = netip.MustParseAddr("10.99.0.2")
	clientAddr = netip.MustParseAddr("10.99.0.3")
	routerAddr = netip.MustParseAddr("10.99.0.1")
)

const echoPort, closedPort = 7000, 7999

// world is what a CNI bridge leaves behind, all in namespaces of its own: a
// bridge in one that plays the node, a client, and the pod's P with eth0; and an
// empty I.
type world struct {
	node, client, pod, inner string
	att                      *network.Attachment
	slow                     bool // without the fast path
	ignore                   []network.Filter
	probes                   []netip.Prefix
	youth                    time.Duration
	standIn                  *standIn // where a test asks for it
	nodeToo                  bool     // the link knows the node
	families                 []plan
}

// plan is who has which address of one family, and what Go calls its networks.
type plan struct {
	name, suffix        string
	pod, client, router netip.Addr
	bits                int
	gateway             netip.Addr // hib0's
}

var (
	four = plan{"IPv4", "4", podAddr, clientAddr, routerAddr, 24, netip.MustParseAddr("169.254.42.1")}
	six  = plan{
		"IPv6", "6", netip.MustParseAddr("fd99::2"), netip.MustParseAddr("fd99::3"), netip.MustParseAddr("fd99::1"), 64,
		netip.MustParseAddr("fe80::42:1"),
	}
)

func (p plan) tcp() string { return "tcp" + p.suffix }
func (p plan) udp() string { return "udp" + p.suffix }

func (p plan) at(port uint16) string { return netip.AddrPortFrom(p.pod, port).String() }

func newWorld(t testing.TB) *world {
	t.Helper()
	return newWorldOf(t, four)
}

func newWorldOf(t testing.TB, families ...plan) *world {
	t.Helper()
	testroot.Require(t)
	dir := t.TempDir()
	w := &world{families: families}
	for name, path := range map[string]*string{"node": &w.node, "client": &w.client, "pod": &w.pod, "inner": &w.inner} {
		*path = filepath.Join(dir, name)
		must(t, network.NewNamespace(*path))
		inside(t, *path, func() (any, error) { // a new namespace forwards where the machine does
			return nil, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("0"), 0)
		})
		t.Cleanup(func() { must(t, network.RemoveNamespace(*path)) })
	}
	node := handle(t, w.node)
	must(t, node.LinkAdd(&netlink.Bridge{LinkAttrs: named("br0")}))
	must(t, node.LinkSetUp(get(t, node, "br0")))
	for _, f := range families {
		addAddr(t, node, "br0", f.router, f.bits)
	}
	for _, path := range []string{w.client, w.pod} {
		port := "v" + filepath.Base(path)
		pair(t, w.node, port, path, "eth0", nil)
		must(t, node.LinkSetMaster(get(t, node, port), get(t, node, "br0")))
		h := handle(t, path)
		must(t, h.LinkSetUp(get(t, h, "lo")))
		for _, f := range families {
			addr := f.client
			if path == w.pod {
				addr = f.pod
			}
			addAddr(t, h, "eth0", addr, f.bits)
			must(t, h.RouteAdd(&netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Dst: everywhere(addr), Gw: f.router.AsSlice()}))
			eventually(t, "the address is in use", func() bool { return inUse(t, h, addr) })
		}
	}
	return w
}

// inUse says whether packets to an address are taken: of IPv6's the kernel begins with that a moment later.
func inUse(t testing.TB, h *netlink.Handle, a netip.Addr) bool {
	t.Helper()
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	list, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_LOCAL, Dst: hostNet(a)}, netlink.RT_FILTER_TABLE|netlink.RT_FILTER_DST)
	must(t, err)
	return len(list) > 0
}

func everywhere(like netip.Addr) *net.IPNet {
	return &net.IPNet{IP: make(net.IP, like.BitLen()/8), Mask: net.CIDRMask(0, like.BitLen())}
}

// open captures the pod's network and opens a link, closed at the test's end.
func (w *world) open(t testing.TB) *network.Link {
	t.Helper()
	if w.att == nil {
		a, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
		must(t, err)
		w.att = a
	}
	o := network.Options{Pod: w.pod, Inner: w.inner, Attachment: w.att, NoFastPath: w.slow, Ignore: w.ignore, Probes: w.probes, Youth: w.youth}
	if w.nodeToo {
		o.Node = w.node
	}
	l, err := network.Open(t.Context(), o)
	must(t, err)
	t.Cleanup(func() { l.Close() })
	return l
}

// awake is a world with a stand-in for the sandbox that is up and connected.
func awake(t testing.TB) (*world, *network.Link, *standIn) {
	t.Helper()
	return awakeIn(t, newWorld(t))
}

func awakeIn(t testing.TB, w *world) (*world, *network.Link, *standIn) {
	t.Helper()
	l := w.open(t)
	s := newStandIn(t, w)
	ready(t, handle(t, w.pod), "hib0")
	must(t, l.Connect(t.Context()))
	return w, l, s
}

func named(name string) netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = name
	return a
}

func pair(t testing.TB, ns, name, peerNS, peer string, mac net.HardwareAddr) {
	t.Helper()
	f, err := os.Open(peerNS)
	must(t, err)
	defer f.Close()
	h := handle(t, ns)
	must(t, h.LinkAdd(&netlink.Veth{LinkAttrs: named(name), PeerName: peer, PeerNamespace: netlink.NsFd(int(f.Fd())), PeerHardwareAddr: mac}))
	must(t, h.LinkSetUp(get(t, h, name)))
	other := handle(t, peerNS)
	must(t, other.LinkSetUp(get(t, other, peer)))
	ready(t, h, name)
	ready(t, other, peer)
}

// ready waits until packets pass a fresh interface; before, they are dropped.
func ready(t testing.TB, h *netlink.Handle, name string) {
	t.Helper()
	eventually(t, name+" is up", func() bool { return get(t, h, name).Attrs().OperState == netlink.OperUp })
}

func addAddr(t testing.TB, h *netlink.Handle, link string, a netip.Addr, bits int) {
	t.Helper()
	l := get(t, h, link)
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(bits, a.BitLen())}}
	if a.Is6() {
		addr.Flags = unix.IFA_F_NODAD
	}
	must(t, h.AddrAdd(l, addr))
	must(t, h.LinkSetUp(l))
}

func handle(t testing.TB, path string) *netlink.Handle {
	t.Helper()
	f, err := os.Open(path)
	must(t, err)
	defer f.Close()
	h, err := netlink.NewHandleAt(netns.NsHandle(int(f.Fd())), unix.NETLINK_ROUTE)
	must(t, err)
	t.Cleanup(h.Close)
	return h
}

func get(t testing.TB, h *netlink.Handle, name string) netlink.Link {
	t.Helper()
	l, err := h.LinkByName(name)
	must(t, err)
	return l
}

// inside runs fn on a thread in a namespace; sockets that it makes stay there.
func inside[T any](t testing.TB, path string, fn func() (T, error)) T {
	t.Helper()
	v, err := tryInside(path, fn)
	must(t, err)
	return v
}

func tryInside[T any](path string, fn func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		runtime.LockOSThread()
		var r result
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- result{err: err}
			return
		}
		defer home.Close()
		f, err := os.Open(path)
		if err != nil {
			done <- result{err: err}
			return
		}
		defer f.Close()
		if r.err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); r.err == nil {
			r.v, r.err = fn()
		}
		if unix.Setns(int(home.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		done <- r
	}()
	r := <-done
	return r.v, r.err
}

// dial connects from the client to the pod.
func (w *world) dial(port uint16, timeout time.Duration) (net.Conn, error) {
	return tryInside(w.client, func() (net.Conn, error) {
		return net.DialTimeout("tcp4", netip.AddrPortFrom(podAddr, port).String(), timeout)
	})
}

// say sends a line and expects it back.
func say(c net.Conn, line string, timeout time.Duration) error {
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(line + "\n")); err != nil {
		return err
	}
	return hear(c, line)
}

func hear(c net.Conn, line string) error {
	buf := make([]byte, len(line)+1)
	for n := 0; n < len(buf); {
		m, err := c.Read(buf[n:])
		if err != nil {
			return fmt.Errorf("after %q: %w", buf[:n], err)
		}
		n += m
	}
	if string(buf) != line+"\n" {
		return fmt.Errorf("heard %q, not %q", buf, line)
	}
	return nil
}

// eventually polls until ok, for ten seconds.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("in vain: %s", what)
		case <-time.After(2 * time.Millisecond):
		}
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func refused(err error) bool { return errors.Is(err, unix.ECONNREFUSED) }

func hostNet(a netip.Addr) *net.IPNet {
	return &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}
}

// shortSolicit, in P, lets a neighbour fail after a second rather than ten minutes.
func shortSolicit() error {
	return os.WriteFile("/proc/sys/net/ipv4/neigh/hib0/app_solicit", []byte("1"), 0)
}

func neighbourFailed(t testing.TB, h *netlink.Handle, index int) bool {
	t.Helper()
	list, err := h.NeighList(index, netlink.FAMILY_V4)
	must(t, err)
	return len(list) == 1 && list[0].State == netlink.NUD_FAILED
}

func prefixes(list ...string) (out []netip.Prefix) {
	for _, s := range list {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

func addrOf(s string) netip.Addr { return netip.MustParseAddr(s) }
