package network_test

import (
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hibernate-runtime/hibernate/network"
)

// What P's kernel would not forward, whatever its routes say, the fast path doesn't send either: the node beyond might take
// it for its own.
func TestAddressesOfNobodyStayInThePod(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, _ bool) {
		h := handle(t, w.pod)
		must(t, h.LinkSetDown(get(t, h, "lo"))) // and with it the route of 127.0.0.0/8
		hib0 := get(t, h, "hib0").Attrs().HardwareAddr
		wire := inside(t, s.ns, func() (*os.File, error) { return packetSocket("eth0") })
		defer wire.Close()
		beyond := inside(t, w.node, func() (*os.File, error) { return packetSocket("vpod") })
		defer beyond.Close()
		send := func(to netip.Addr) {
			p := audible(8)
			copy(p[12:], podAddr.AsSlice())
			copy(p[16:], to.AsSlice())
			seal(p)
			_, err := wire.Write(slices.Concat(make([]byte, 10), hib0, net.HardwareAddr{2, 0, 0, 0, 0, 7}, []byte{8, 0}, p))
			must(t, err)
		}
		reached := func(honest netip.Addr) netip.Addr {
			must(t, beyond.SetReadDeadline(time.Now().Add(5*time.Second)))
			for {
				send(honest)
				buf := make([]byte, 2000)
				n, err := beyond.Read(buf)
				must(t, err)
				if f := buf[10:n]; len(f) >= 34 && f[12] == 8 && f[13] == 0 {
					return netip.AddrFrom4([4]byte(f[30:34]))
				}
			}
		}
		for range 3 { // so that the way to the router is known
			reached(routerAddr)
		}
		for _, nobody := range []string{"0.0.0.0", "127.0.0.1", "224.0.0.251", "239.1.1.1", "255.255.255.255"} {
			for range 3 {
				send(addrOf(nobody))
			}
			for range 4 {
				if to := reached(routerAddr); to != routerAddr {
					t.Errorf("a packet to %s left the pod", to)
				}
			}
		}
	})
}

// An interface without Ethernet headers has packets that would be misread.
func TestNoFastPathWithoutFrames(t *testing.T) {
	w := newWorld(t)
	h := handle(t, w.pod)
	must(t, h.LinkDel(get(t, h, "eth0")))
	tun := &netlink.Tuntap{LinkAttrs: named("tun0"), Mode: netlink.TUNTAP_MODE_TUN, Flags: netlink.TUNTAP_DEFAULTS | netlink.TUNTAP_NO_PI, Queues: 1}
	inside(t, w.pod, func() (any, error) { return nil, netlink.LinkAdd(tun) })
	t.Cleanup(func() { tun.Fds[0].Close() })
	addAddr(t, h, "tun0", podAddr, 24)
	_, l, s := awakeIn(t, w)
	if why := l.FastPath(); !strings.Contains(why, "Ethernet") {
		t.Errorf("the fast path's reason is %q", why)
	}
	ln := listenNobodys(t, s.ns, podAddr)
	p := audible(5)
	copy(p[12:], clientAddr.AsSlice())
	copy(p[16:], podAddr.AsSlice())
	seal(p)
	_, err := tun.Fds[0].Write(p)
	must(t, err)
	first(t, ln, 5)
}

// Where P routes by source, the way of one address is not another's.
func TestHopIsOfItsSource(t *testing.T) {
	w := newWorld(t)
	h := handle(t, w.pod)
	second, far := addrOf("10.99.0.9"), addrOf("192.0.2.1")
	addAddr(t, h, "eth0", second, 24)
	rule := netlink.NewRule()
	rule.Family, rule.Src, rule.Table, rule.Priority = netlink.FAMILY_V4, hostNet(second), 77, 500
	must(t, h.RuleAdd(rule))
	must(t, h.RouteAdd(&netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Gw: clientAddr.AsSlice(), Table: 77}))
	w, l, s := awakeIn(t, w)
	if why := l.FastPath(); why != "" {
		t.Fatal(why)
	}
	wire := inside(t, s.ns, func() (*os.File, error) { return packetSocket("eth0") })
	defer wire.Close()
	beyond := inside(t, w.node, func() (*os.File, error) { return packetSocket("vpod") })
	defer beyond.Close()
	hib0, mac := get(t, h, "hib0").Attrs().HardwareAddr, get(t, handle(t, w.client), "eth0").Attrs().HardwareAddr
	for range 5 {
		for _, from := range []netip.Addr{podAddr, second} {
			p := audible(8)
			copy(p[12:], from.AsSlice())
			copy(p[16:], far.AsSlice())
			seal(p)
			_, err := wire.Write(slices.Concat(make([]byte, 10), hib0, net.HardwareAddr{2, 0, 0, 0, 0, 7}, []byte{8, 0}, p))
			must(t, err)
			must(t, beyond.SetReadDeadline(time.Now().Add(5*time.Second)))
			for {
				buf := make([]byte, 2000)
				n, err := beyond.Read(buf)
				must(t, err)
				if f := buf[10:n]; len(f) >= 34 && f[12] == 8 && f[13] == 0 {
					if to := net.HardwareAddr(f[:6]); (to.String() == mac.String()) != (from == second) {
						t.Errorf("from %s it goes to %s", from, to)
					}
					break
				}
			}
		}
	}
}
