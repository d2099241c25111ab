package network_test

import (
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// families runs a test for IPv6: in a pod that has IPv4, too, and in one that hasn't; and for IPv4 beside IPv6.
func eachFamily(t *testing.T, do func(t *testing.T, w *world, f plan)) {
	for name, one := range map[string]struct {
		pod  []plan
		test plan
	}{"IPv6 of both": {[]plan{four, six}, six}, "IPv6 alone": {[]plan{six}, six}, "IPv4 of both": {[]plan{four, six}, four}} {
		t.Run(name, func(t *testing.T) { do(t, newWorldOf(t, one.pod...), one.test) })
	}
}

func (w *world) dialBy(f plan, port uint16, timeout time.Duration) (net.Conn, error) {
	return tryInside(w.client, func() (net.Conn, error) { return net.DialTimeout(f.tcp(), f.at(port), timeout) })
}

func (w *world) datagrams(t *testing.T, f plan) net.Conn {
	t.Helper()
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial(f.udp(), f.at(echoPort)) })
	t.Cleanup(func() { u.Close() })
	return u
}

func TestOpenGatePassesEachFamily(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		_, _, s := awakeIn(t, w)
		c, err := w.dialBy(f, echoPort, answerTime)
		must(t, err)
		defer c.Close()
		must(t, say(c, "hello", answerTime))
		must(t, say(c, strings.Repeat("a long line ", 1<<16), answerTime))
		if _, err := w.dialBy(f, closedPort, answerTime); !refused(err) {
			t.Fatalf("closed port: %v", err)
		}
		must(t, say(w.datagrams(t, f), "datagram", answerTime))
		// and outward
		ln := inside(t, w.client, func() (net.Listener, error) { return net.Listen(f.tcp(), ":7100") })
		defer ln.Close()
		go echoTCP(ln)
		out := inside(t, s.ns, func() (net.Conn, error) {
			return net.DialTimeout(f.tcp(), netip.AddrPortFrom(f.client, 7100).String(), time.Second)
		})
		defer out.Close()
		must(t, say(out, "outward", answerTime))
	})
}

// The pod's neighbours find it as before, by an address that it shares with the sandbox, and go on to.
func TestNeighboursFindThePodByIPv6(t *testing.T) {
	w, l, s := awakeIn(t, newWorldOf(t, four, six))
	h := handle(t, w.client)
	for _, g := range []network.Gate{opened, held(echoPort), parked} {
		if g.Position != network.GateOpen {
			asleep(t, l, s, g)
		}
		misses := watch(t, l)
		if answer := ping6(w.client, six); answer != pingReply {
			t.Errorf("%s: %s", g.Position, answer)
		}
		must(t, h.NeighDel(&netlink.Neigh{LinkIndex: get(t, h, "eth0").Attrs().Index, IP: six.pod.AsSlice()}))
		if answer := ping6(w.client, six); answer != pingReply {
			t.Errorf("%s: %s", g.Position, answer)
		}
		if len(misses) > 0 {
			t.Errorf("%s: a neighbour's question is a packet for the sandbox", g.Position)
		}
		if g.Position != network.GateOpen {
			woken(t, l, s)
		}
	}
}

// ping6 asks by a socket whose checksum the kernel makes.
func ping6(ns string, f plan) string {
	c, err := tryInside(ns, func() (net.Conn, error) { return net.Dial("ip6:ipv6-icmp", f.pod.String()) })
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err.Error()
	}
	if _, err := c.Write([]byte{128, 0, 0, 0, 0x42, 0x42, 0, 1}); err != nil {
		return err.Error()
	}
	for buf := make([]byte, 100); ; {
		n, err := c.Read(buf)
		if err != nil {
			return err.Error()
		}
		if n >= 8 && buf[0] == 129 && buf[4] == 0x42 && buf[5] == 0x42 {
			return pingReply
		}
	}
}

func TestRemoveLeavesThePodAsFoundWithIPv6(t *testing.T) {
	t.Parallel()
	for name, families := range map[string][]plan{"both": {four, six}, "IPv6 alone": {six}} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, families...)
			before := dump(t, w.pod)
			l := w.open(t)
			must(t, l.PrepareInner(t.Context()))
			must(t, l.Connect(t.Context()))
			must(t, l.SetGate(t.Context(), held(80)))
			f, err := l.Listen(t.Context(), 80, network.Backlog{})
			must(t, err)
			must(t, f.Close())
			must(t, l.Close())
			again := w.open(t)
			must(t, again.Remove(t.Context()))
			same(t, before, dump(t, w.pod))
		})
	}
}

// A link that a shim made which carried only IPv4 carries both when one that knows of IPv6 opens it.
func TestLinkOfIPv4IsExtended(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, four, six)
	before := dump(t, w.pod)
	a, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()), network.WithoutIPv6())
	must(t, err)
	w.att = a
	if l := w.open(t); l.Address() != four.pod || len(a.Addresses) != 1 {
		t.Fatalf("without IPv6 the link carries %v", a.Addresses)
	}
	w.att = nil
	w, l, _ := awakeIn(t, w)
	c, err := w.dialBy(six, echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
	must(t, l.Remove(t.Context()))
	same(t, before, dump(t, w.pod))
}

// What routers advertise stays P's: it hears them, and no route of theirs is lost when it begins to forward.
func TestRouterAdvertisementsAreKept(t *testing.T) {
	t.Parallel()
	w := newWorldOf(t, four, six)
	h := handle(t, w.pod)
	eth0 := get(t, h, "eth0").Attrs().Index
	must(t, h.RouteDel(&netlink.Route{LinkIndex: eth0, Dst: everywhere(six.pod), Gw: six.router.AsSlice()}))
	advertise(t, w)
	eventually(t, "the pod has a route from a router", func() bool { return advertised(t, h) == 1 })
	before := inside(t, w.pod, func() (string, error) { return ipv6Settings("eth0") })
	l := w.open(t)
	newStandIn(t, w)
	must(t, l.Connect(t.Context()))
	if n := advertised(t, h); n != 1 {
		t.Fatalf("%d routes from routers are left", n)
	}
	if now := inside(t, w.pod, func() (string, error) { return ipv6Settings("eth0") }); now != before {
		t.Errorf("the interface was %s and is %s", before, now)
	}
	inside(t, w.pod, func() (any, error) {
		return nil, os.WriteFile("/proc/sys/net/ipv6/conf/hib0/forwarding", []byte("0"), 0)
	})
	mendAll(t, l)
	if now := inside(t, w.pod, func() (string, error) { return ipv6Settings("hib0") }); !strings.Contains(now, "forwarding=1") {
		t.Errorf("hib0 is mended to %s", now)
	}
	if n := advertised(t, h); n != 1 {
		t.Fatalf("%d routes from routers are left after the mending", n)
	}
	if list := l.Attachment().Routes; !hasAdvertised(list) {
		t.Errorf("captured %+v", list)
	}
	// It is not put back when the router takes it away, and comes again with its word.
	withdraw(t, w)
	eventually(t, "the route has gone", func() bool { return advertised(t, h) == 0 })
	mendAll(t, l)
	if n := advertised(t, h); n != 0 {
		t.Errorf("%d routes from routers were put back", n)
	}
	advertise(t, w)
	eventually(t, "the route is back", func() bool { return advertised(t, h) == 1 })
	c, err := w.dialBy(six, echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
}

func hasAdvertised(list []network.Route) bool {
	for _, r := range list {
		if r.Advertised && r.Destination.Bits() == 0 {
			return true
		}
	}
	return false
}

func advertised(t *testing.T, h *netlink.Handle) (n int) {
	t.Helper()
	list, err := h.RouteList(nil, netlink.FAMILY_V6)
	must(t, err)
	for _, r := range list {
		if ones, _ := maskOf(r.Dst); ones == 0 && r.Protocol == 9 {
			n++
		}
	}
	return n
}

func maskOf(n *net.IPNet) (int, int) {
	if n == nil {
		return 0, 128
	}
	return n.Mask.Size()
}

func ipv6Settings(name string) (string, error) {
	var list []string
	for _, of := range []string{"forwarding", "accept_ra", "disable_ipv6"} {
		b, err := os.ReadFile("/proc/sys/net/ipv6/conf/" + name + "/" + of)
		if err != nil {
			return "", err
		}
		list = append(list, of+"="+strings.TrimSpace(string(b)))
	}
	return strings.Join(list, " "), nil
}

// advertise says once that the node is a router, and withdraw that it is none.
func advertise(t *testing.T, w *world) { routerSays(t, w, 0x07, 0x08) }
func withdraw(t *testing.T, w *world)  { routerSays(t, w, 0, 0) }

func routerSays(t *testing.T, w *world, lifetime ...byte) {
	t.Helper()
	node := handle(t, w.node)
	index := get(t, node, "br0").Attrs().Index
	eventually(t, "the router has an address of the link", func() bool {
		list, err := node.AddrList(get(t, node, "br0"), netlink.FAMILY_V6)
		must(t, err)
		for _, a := range list {
			if a.IP.IsLinkLocalUnicast() && a.Flags&0x40 == 0 { // not tentative any more
				return true
			}
		}
		return false
	})
	inside(t, w.node, func() (any, error) {
		c, err := net.ListenPacket("ip6:ipv6-icmp", "::")
		if err != nil {
			return nil, err
		}
		defer c.Close()
		return nil, sendToAllNodes(c.(*net.IPConn), index, append([]byte{134, 0, 0, 0, 64, 0}, append(lifetime, make([]byte, 8)...)...))
	})
}

// sendToAllNodes sends with a hop limit of 255, as who is on the link does.
func sendToAllNodes(c *net.IPConn, index int, message []byte) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MULTICAST_HOPS, 255); failed == nil {
			to := &unix.SockaddrInet6{ZoneId: uint32(index)}
			to.Addr[0], to.Addr[1], to.Addr[15] = 0xff, 2, 1
			failed = unix.Sendto(int(fd), message, 0, to)
		}
	})
	if err != nil {
		return err
	}
	return failed
}
