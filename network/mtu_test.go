package network_test

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

func widthOf(t *testing.T, ns, name string) int { return get(t, handle(t, ns), name).Attrs().MTU }

func expectWidth(t *testing.T, w *world, want int, when string) {
	t.Helper()
	if outer, inner := widthOf(t, w.pod, "hib0"), widthOf(t, w.inner, "eth0"); outer != want || inner != want {
		t.Fatalf("%s the link's MTU is %d in P and %d in I, not %d", when, outer, inner, want)
	}
}

// The link takes what the pod's interface and its default route take. A sandbox that runs keeps what it knows, or may get more.
func TestLinksMTUFollowsThePods(t *testing.T) {
	w := newWorld(t)
	h := handle(t, w.pod)
	route := &netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Gw: routerAddr.AsSlice(), MTU: 1450}
	must(t, h.RouteReplace(route))
	l := w.open(t)
	expectWidth(t, w, 1450, "made,")
	if list := l.Attachment().Routes; !slices.ContainsFunc(list, func(r network.Route) bool { return r.MTU == 1450 }) {
		t.Errorf("no route's MTU is captured: %+v", list)
	}
	must(t, h.LinkSetMTU(get(t, h, "eth0"), 1400))
	must(t, h.LinkSetMTU(get(t, h, "hib0"), 1420))
	mendAll(t, l)
	expectWidth(t, w, 1450, "with the interface smaller under the sandbox,")
	must(t, l.PrepareInner(t.Context()))
	expectWidth(t, w, 1400, "for the next sandbox,")
	route.MTU = 0
	must(t, h.LinkSetMTU(get(t, h, "eth0"), 1480))
	must(t, h.RouteReplace(route))
	mendAll(t, l)
	expectWidth(t, w, 1480, "with the interface larger,")
	must(t, h.RouteDel(route))
	mendAll(t, l)
	list, err := h.RouteList(nil, netlink.FAMILY_V4)
	must(t, err)
	if !slices.ContainsFunc(list, func(r netlink.Route) bool { return r.MTU == 1450 }) {
		t.Errorf("the default route that is put back has lost its MTU: %+v", list)
	}
}

func mendAll(t *testing.T, l *network.Link) {
	t.Helper()
	for _, r := range l.Mend(t.Context(), false) {
		if !r.OK {
			t.Errorf("%+v", r)
		}
	}
}

// An interface that takes more is told, so that the link follows.
func TestInterfacesChangeIsTold(t *testing.T) {
	w, l, _ := awake(t)
	changes := told(t, l)
	sure(t, w, changes)
	h := handle(t, w.pod)
	must(t, h.LinkSetMTU(get(t, h, "eth0"), 1600))
	select {
	case <-changes:
	case <-time.After(10 * time.Second):
		t.Fatal("nothing is told")
	}
	mendAll(t, l)
	expectWidth(t, w, 1600, "mended,")
}

// narrow are the ways to have less room behind P than the sandbox knows of; each leaves 1400 bytes.
var narrow = map[string]func(t *testing.T, h *netlink.Handle){
	"interface": func(t *testing.T, h *netlink.Handle) { must(t, h.LinkSetMTU(get(t, h, "eth0"), 1400)) },
	"route": func(t *testing.T, h *netlink.Handle) {
		must(t, h.RouteAdd(&netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Dst: hostNet(clientAddr), MTU: 1400}))
	},
}

// What P finds too long for the way on, it tells the sandbox, which then sends shorter packets.
func TestSandboxIsToldOfTooLongPackets(t *testing.T) {
	t.Parallel()
	for name, do := range narrow {
		t.Run(name, func(t *testing.T) {
			bothBy(t, four, func(t *testing.T, w *world, _ *network.Link, s *standIn, _ bool) {
				warm(t, w, four)
				ln := inside(t, w.client, func() (net.Listener, error) { return net.Listen("tcp4", ":7100") })
				defer ln.Close()
				c := inside(t, s.ns, func() (net.Conn, error) { return net.Dial("tcp4", clientAddr.String()+":7100") })
				defer c.Close()
				in, err := ln.Accept()
				must(t, err)
				defer in.Close()
				do(t, handle(t, w.pod))
				u := reporting(t, s.ns, clientAddr.String()+":9", 64)
				eventually(t, "the sandbox knows the path's MTU", func() bool {
					send(u, 1450) // the fast path goes by what it knew for a second
					return pathMTU(t, u) == 1400
				})
				sent := make([]byte, 200<<10)
				go c.Write(sent)
				must(t, in.SetReadDeadline(time.Now().Add(10*time.Second)))
				_, err = io.ReadFull(in, sent)
				must(t, err)
			})
		})
	}
}

// Where P knows no way on, the sandbox hears of it as it would from any router.
func TestSandboxIsToldOfPsErrors(t *testing.T) {
	t.Parallel()
	for name, one := range map[string]struct {
		to   string
		hops int
		want syscall.Errno
	}{
		"no way":      {"192.0.2.1:9", 64, unix.EHOSTUNREACH},
		"nobody":      {"10.99.0.77:9", 64, unix.EHOSTUNREACH},
		"no hop left": {clientAddr.String() + ":9", 1, unix.EHOSTUNREACH},
	} {
		t.Run(name, func(t *testing.T) {
			bothBy(t, four, func(t *testing.T, w *world, _ *network.Link, s *standIn, fast bool) {
				h := handle(t, w.pod)
				must(t, h.RouteAdd(&netlink.Route{Type: unix.RTN_PROHIBIT, Dst: hostNet(addrOf("192.0.2.1"))}))
				u := reporting(t, s.ns, one.to, one.hops)
				if fast && one.hops == 1 { // it is no hop: the client gets the datagram, and refuses it
					warm(t, w, four)
					eventually(t, "the client refuses", func() bool {
						send(u, 10) // the first may go P's way, to learn the next hop
						return pending(t, u) == unix.ECONNREFUSED
					})
					return
				}
				send(u, 10)
				expectError(t, u, one.want)
			})
		})
	}
}

// Errors of routers beyond P reach the sandbox, awake or when it is woken.
func TestSandboxIsToldOfErrorsOnTheWay(t *testing.T) {
	bothBy(t, four, func(t *testing.T, w *world, l *network.Link, s *standIn, _ bool) {
		warm(t, w, four)
		u := reporting(t, s.ns, clientAddr.String()+":9", 64)
		at := u.LocalAddr().(*net.UDPAddr).Port
		sendRaw(t, w.node, icmpError(unix.IPPROTO_UDP, 1, 0, at, 9))
		expectError(t, u, unix.EHOSTUNREACH)
		sendRaw(t, w.node, icmpError(unix.IPPROTO_UDP, 4, 1400, at, 9))
		eventually(t, "the sandbox knows the path's MTU", func() bool { return pathMTU(t, u) == 1400 })
		pending(t, u)
		for _, g := range []network.Gate{held(echoPort), parked} {
			misses := watch(t, l)
			asleep(t, l, s, g)
			sendRaw(t, w.node, icmpError(unix.IPPROTO_UDP, 1, 0, at, 9))
			next(t, misses)
			woken(t, l, s)
			expectError(t, u, unix.EHOSTUNREACH)
		}
	})
}

// An error about a connection that P holds is P's.
func TestErrorsOfHeldConnectionsStayInP(t *testing.T) {
	bothBy(t, four, func(t *testing.T, w *world, l *network.Link, _ *standIn, _ bool) {
		f, err := l.Listen(t.Context(), echoPort, network.Backlog{})
		must(t, err)
		defer f.Close()
		ln, err := net.FileListener(f)
		must(t, err)
		defer ln.Close()
		for _, g := range []network.Gate{held(echoPort), parked, opened} {
			must(t, l.SetGate(t.Context(), held(echoPort)))
			c, err := w.dial(echoPort, answerTime)
			must(t, err)
			defer c.Close()
			in, err := ln.Accept()
			must(t, err)
			defer in.Close()
			must(t, l.SetGate(t.Context(), g))
			heard := func() int {
				return inside(t, w.pod, func() (int, error) { return snmp("Icmp:", "InDestUnreachs") })
			}
			before := heard()
			sendRaw(t, w.node, icmpError(unix.IPPROTO_TCP, 4, 1400, echoPort, c.LocalAddr().(*net.TCPAddr).Port))
			eventually(t, g.Position.String()+": P hears of it", func() bool { return heard() > before })
		}
	})
}

// reporting is a connected socket which is told of every error, and fragments nothing.
func reporting(t *testing.T, ns, to string, hops int) *net.UDPConn {
	t.Helper()
	u := inside(t, ns, func() (net.Conn, error) { return net.Dial("udp4", to) }).(*net.UDPConn)
	t.Cleanup(func() { u.Close() })
	setOptions(t, u, map[int]int{unix.IP_RECVERR: 1, unix.IP_TTL: hops, unix.IP_MTU_DISCOVER: unix.IP_PMTUDISC_DO})
	return u
}

func setOptions(t *testing.T, u *net.UDPConn, values map[int]int) {
	t.Helper()
	raw, err := u.SyscallConn()
	must(t, err)
	for option, v := range values {
		var e error
		must(t, raw.Control(func(fd uintptr) { e = unix.SetsockoptInt(int(fd), unix.SOL_IP, option, v) }))
		must(t, e)
	}
}

// send may hear of an error of before.
func send(u *net.UDPConn, length int) { u.Write(make([]byte, length)) }

func option(t *testing.T, c syscall.Conn, level, name int) (v int) {
	t.Helper()
	raw, err := c.SyscallConn()
	must(t, err)
	var e error
	must(t, raw.Control(func(fd uintptr) { v, e = unix.GetsockoptInt(int(fd), level, name) }))
	must(t, e)
	return v
}

func pathMTU(t *testing.T, u *net.UDPConn) int { return option(t, u, unix.SOL_IP, unix.IP_MTU) }

// pending takes the socket's error, if any.
func pending(t *testing.T, u *net.UDPConn) syscall.Errno {
	return syscall.Errno(option(t, u, unix.SOL_SOCKET, unix.SO_ERROR))
}

func expectError(t *testing.T, u *net.UDPConn, want syscall.Errno) {
	t.Helper()
	var have syscall.Errno
	eventually(t, "an error is told", func() bool {
		have = pending(t, u)
		return have != 0
	})
	if have != want {
		t.Fatalf("the sandbox hears of %v, not %v", os.NewSyscallError("", have), want)
	}
}

// icmpError says that a packet of the pod's to the client met an end on its way.
func icmpError(protocol, code byte, mtu, from, to int) []byte {
	about := sealed(between(podAddr, clientAddr, four.packet(protocol, 8)))
	about[20], about[21], about[22], about[23] = byte(from>>8), byte(from), byte(to>>8), byte(to)
	b := append(between(routerAddr, podAddr, four.packet(unix.IPPROTO_ICMP, 8)), about...)
	copy(b[20:], []byte{3, code, 0, 0, 0, 0, byte(mtu >> 8), byte(mtu)})
	binary.BigEndian.PutUint16(b[22:], checksum(b[20:]))
	return sealed(b)
}

// gVisor goes by what it is told, awake, and restored behind an interface that takes less than it knew.
func TestRunscGoesByThePathsMTU(t *testing.T) {
	t.Parallel()
	for name, slow := range map[string]bool{"past the stack": false, "through it": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.slow = slow
			l := w.open(t)
			must(t, l.PrepareInner(t.Context()))
			g := newGvisor(t, w.inner)
			g.start(t)
			must(t, l.Connect(t.Context()))
			c := dialRetry(t, w)
			defer c.Close()
			echoesMuch(t, c)
			for what, do := range narrow {
				do(t, handle(t, w.pod))
				if what == "interface" { // and what comes is no longer
					do(t, handle(t, w.client))
				}
			}
			tooLong := func() int { return inside(t, w.pod, func() (int, error) { return snmp("Ip:", "FragFails") }) }
			before := tooLong()
			eventually(t, "P finds packets too long", func() bool {
				echoesMuch(t, c)
				return tooLong() > before
			})
			must(t, l.Disconnect(t.Context()))
			must(t, l.SetGate(t.Context(), parked))
			must(t, l.Quiet(t.Context(), 20*time.Millisecond))
			image := g.save(t)
			must(t, l.PrepareInner(t.Context()))
			expectWidth(t, w, 1400, "for the restore,")
			g.restore(t, image)
			must(t, l.SetGate(t.Context(), opened))
			must(t, l.Connect(t.Context()))
			echoesMuch(t, c)
		})
	}
}

func echoesMuch(t *testing.T, c net.Conn) {
	t.Helper()
	must(t, say(c, strings.Repeat("long ", 4<<10), 20*time.Second))
}
