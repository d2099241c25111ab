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
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// What P's kernel would not forward, whatever its routes say, the fast path doesn't send either: the node beyond might take
// it for its own.
func TestAddressesOfNobodyStayInThePod(t *testing.T) {
	both(t, func(t *testing.T, w *world, _ *network.Link, s *standIn, p plan, _ bool) {
		h := handle(t, w.pod)
		must(t, h.LinkSetDown(get(t, h, "lo"))) // and with it the route of what is of this node
		hib0 := get(t, h, "hib0").Attrs().HardwareAddr
		wire := inside(t, s.ns, func() (*os.File, error) { return packetSocket("eth0") })
		defer wire.Close()
		beyond := inside(t, w.node, func() (*os.File, error) { return packetSocket("vpod") })
		defer beyond.Close()
		send := func(to netip.Addr) {
			_, err := wire.Write(framed(hib0, between(p.pod, to, p.audible(8))))
			must(t, err)
		}
		nobodys := []netip.Addr{addrOf("0.0.0.0"), addrOf("127.0.0.1"), addrOf("224.0.0.251"), addrOf("239.1.1.1"), addrOf("255.255.255.255")}
		if p.pod.Is6() {
			nobodys = []netip.Addr{addrOf("::1"), addrOf("fe80::9"), addrOf("ff02::1"), addrOf("ff05::2")}
		}
		reached := func(honest netip.Addr) netip.Addr {
			must(t, beyond.SetReadDeadline(time.Now().Add(5*time.Second)))
			for {
				send(honest)
				buf := make([]byte, 2000)
				n, err := beyond.Read(buf)
				must(t, err)
				if to := p.destination(buf[:n]); to == honest || slices.Contains(nobodys, to) && !saysOfNeighbours(buf[10:n]) {
					return to
				}
			}
		}
		for range 3 { // so that the way to the router is known
			reached(p.router)
		}
		for _, nobody := range nobodys {
			for range 3 {
				send(nobody)
			}
			for range 4 {
				if to := reached(p.router); to != p.router {
					t.Errorf("a packet to %s left the pod", to)
				}
			}
		}
	})
}

// saysOfNeighbours tells what P itself says to groups.
func saysOfNeighbours(frame []byte) bool {
	return frame[14]>>4 == 6 && frame[14+6] != unix.IPPROTO_UDP
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
	_, err := tun.Fds[0].Write(sealed(between(clientAddr, podAddr, four.audible(5))))
	must(t, err)
	first(t, ln, 5)
}

// Where P routes by source, the way of one address is not another's.
func TestHopIsOfItsSource(t *testing.T) {
	for _, p := range []plan{four, six} {
		t.Run(p.name, func(t *testing.T) {
			w := newWorldOf(t, p)
			h := handle(t, w.pod)
			second, far, family := p.other(9), addrOf("192.0.2.1"), netlink.FAMILY_V4
			if p.pod.Is6() {
				far, family = addrOf("2001:db8::1"), netlink.FAMILY_V6
			}
			addAddr(t, h, "eth0", second, p.bits)
			eventually(t, "the address is in use", func() bool { return inUse(t, h, second) })
			rule := netlink.NewRule()
			rule.Family, rule.Src, rule.Table, rule.Priority = family, hostNet(second), 77, 500
			must(t, h.RuleAdd(rule))
			must(t, h.RouteAdd(&netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Dst: everywhere(far), Gw: p.client.AsSlice(), Table: 77}))
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
				for _, from := range []netip.Addr{p.pod, second} {
					_, err := wire.Write(framed(hib0, between(from, far, p.audible(8))))
					must(t, err)
					must(t, beyond.SetReadDeadline(time.Now().Add(5*time.Second)))
					for {
						buf := make([]byte, 2000)
						n, err := beyond.Read(buf)
						must(t, err)
						if p.destination(buf[:n]) != far {
							continue
						}
						if to := net.HardwareAddr(buf[10:16]); (to.String() == mac.String()) != (from == second) {
							t.Errorf("from %s it goes to %s", from, to)
						}
						break
					}
				}
			}
		})
	}
}
