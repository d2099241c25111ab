package network_test

import (
	"fmt"
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

// missed waits for a miss of the address.
func missed(t *testing.T, misses <-chan network.Miss, a netip.Addr) {
	t.Helper()
	select {
	case m := <-misses:
		if m.Address != a {
			t.Fatalf("a miss of %s, not %s", m.Address, a)
		}
	case <-time.After(answerTime):
		t.Fatal("no miss was reported")
	}
}

func TestEstablishedConnectionSurvivesByEachFamily(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		_, l, s := awakeIn(t, w)
		c, err := w.dialBy(f, echoPort, answerTime)
		must(t, err)
		defer c.Close()
		misses := watch(t, l)
		for i, g := range []network.Gate{held(echoPort), parked, held(echoPort)} {
			must(t, say(c, "awake", answerTime))
			asleep(t, l, s, g)
			drain(misses)
			line := fmt.Sprintf("sent asleep %d", i)
			must(t, c.SetDeadline(time.Now().Add(answerTime)))
			_, err := c.Write([]byte(line + "\n"))
			must(t, err)
			missed(t, misses, f.pod)
			woken(t, l, s)
			must(t, hear(c, line))
		}
	})
}

func TestDatagramWakesByEachFamily(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		_, l, s := awakeIn(t, w)
		u := w.datagrams(t, f)
		must(t, say(u, "learns the way", answerTime))
		for _, g := range []network.Gate{held(echoPort), parked} {
			for _, line := range []string{"short", strings.Repeat("in fragments ", 145)} {
				asleep(t, l, s, g)
				misses := watch(t, l)
				must(t, u.SetDeadline(time.Now().Add(answerTime)))
				_, err := u.Write([]byte(line + "\n"))
				must(t, err)
				missed(t, misses, f.pod)
				woken(t, l, s)
				heardWhole(t, u, line)
			}
		}
	})
}

// heardWhole reads one datagram.
func heardWhole(t *testing.T, u net.Conn, line string) {
	t.Helper()
	buf := make([]byte, 1<<16)
	n, err := u.Read(buf)
	must(t, err)
	if string(buf[:n]) != line+"\n" {
		t.Fatalf("%d bytes came back of %d", n, len(line)+1)
	}
}

func TestParkedGateKeepsSYNOfEachFamily(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		_, l, s := awakeIn(t, w)
		asleep(t, l, s, network.Gate{Position: network.GateParked, Ports: []uint16{echoPort}})
		misses := watch(t, l)
		type result struct {
			c   net.Conn
			err error
		}
		done := make(chan result, 1)
		go func() {
			c, err := w.dialBy(f, echoPort, answerTime)
			done <- result{c, err}
		}()
		missed(t, misses, f.pod)
		woken(t, l, s)
		r := <-done
		must(t, r.err)
		defer r.c.Close()
		must(t, say(r.c, "hello", answerTime))
	})
}

// One listener holds the connections of both families; each goes on with its own client's address.
func TestHeldConnectionIsProxiedByEachFamily(t *testing.T) {
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		l := w.open(t)
		both, err := l.Listen(t.Context(), echoPort, network.Backlog{})
		must(t, err)
		defer both.Close()
		must(t, l.SetGate(t.Context(), held(echoPort)))
		client, err := w.dialBy(f, echoPort, answerTime)
		must(t, err)
		defer client.Close()
		if _, err := w.dialBy(f, closedPort, answerTime); !refused(err) {
			t.Fatalf("closed port: %v", err)
		}
		ln, err := net.FileListener(both)
		must(t, err)
		defer ln.Close()
		accepted, err := ln.Accept()
		must(t, err)
		defer accepted.Close()
		if got := netip.MustParseAddrPort(accepted.RemoteAddr().String()).Addr().Unmap(); got != f.client {
			t.Fatalf("accepted from %s", got)
		}
		newStandIn(t, w)
		must(t, l.SetGate(t.Context(), opened))
		must(t, l.Connect(t.Context()))
		must(t, l.Quicken(t.Context()))
		if why := l.FastPath(); why != "" {
			t.Fatalf("no fast path that could take them for the sandbox's: %s", why)
		}
		onward, err := l.Dial(t.Context(), netip.MustParseAddrPort(client.LocalAddr().String()), echoPort)
		must(t, err)
		defer onward.Close()
		if from, to := addrPortOf(onward.LocalAddr()), addrPortOf(onward.RemoteAddr()); from.Addr() != f.client || to.Addr() != f.pod {
			t.Fatalf("dialed from %s to %s", from, to)
		}
		go proxy(accepted, onward)
		must(t, say(client, "through the proxy", answerTime))
		direct, err := w.dialBy(f, echoPort, answerTime)
		must(t, err)
		defer direct.Close()
		must(t, say(direct, "beside the proxy", answerTime))
	})
}

func addrPortOf(a net.Addr) netip.AddrPort { return netip.MustParseAddrPort(a.String()) }

// What a sleeper needn't answer itself is answered by IPv6 as by IPv4; a port that takes only IPv4 is closed to it.
func TestAsleepAnswersAsAwakeByIPv6(t *testing.T) {
	const only4 = 7300
	w, l, s := awakeIn(t, newWorldOf(t, four, six))
	ln := inside(t, s.ns, func() (net.Listener, error) { return net.Listen("tcp4", fmt.Sprintf("0.0.0.0:%d", only4)) })
	defer ln.Close()
	ask := func() map[string]string {
		out := map[string]string{}
		for from, ns := range w.callers() {
			out["echo from "+from] = ping6(ns, six)
			for what, port := range map[string]uint16{"a closed port": closedPort, "a port of IPv4's": only4} {
				out[what+" from "+from] = verdict(tryInside(ns, func() (net.Conn, error) {
					return net.DialTimeout("tcp6", six.at(port), answerTime)
				}))
			}
			out["a datagram to a closed port from "+from] = verdict(tryInside(ns, func() (net.Conn, error) {
				c, err := net.Dial("udp6", six.at(closedPort))
				if err == nil {
					err = say(c, "anybody there", answerTime)
				}
				return c, err
			}))
		}
		return out
	}
	want := ask()
	wants(t, want)
	both, err := l.Listen(t.Context(), only4, network.Backlog{})
	must(t, err)
	defer both.Close()
	for _, g := range gates([]uint16{echoPort, only4}, []uint16{echoPort}) {
		g.Only4 = []uint16{only4}
		asleep(t, l, s, g)
		misses := watch(t, l)
		for question, answer := range ask() {
			if answer != want[question] {
				t.Errorf("%s: %s: %s, and awake %s", g.Position, question, answer, want[question])
			}
		}
		if len(misses) > 0 {
			t.Errorf("%s: a packet waits for the sandbox", g.Position)
		}
		woken(t, l, s)
	}
}

// A pod of IPv6 alone may listen by IPv4, too: of that nobody outside hears.
func TestPortOfIPv4IsClosedToIPv6Alone(t *testing.T) {
	const only4 = 7300
	w := newWorldOf(t, six)
	l := w.open(t)
	ln, err := l.Listen(t.Context(), only4, network.Backlog{})
	must(t, err)
	defer ln.Close()
	for _, position := range []network.Position{network.GateHeld, network.GateParked} {
		must(t, l.SetGate(t.Context(), network.Gate{Position: position, Ports: []uint16{only4, echoPort}, Only4: []uint16{only4}}))
		if c, err := w.dialBy(six, only4, answerTime); !refused(err) {
			t.Errorf("%s: %s", position, verdict(c, err))
		}
	}
}

func TestGateOfBothFamiliesIsReadBack(t *testing.T) {
	for name, one := range map[string]struct {
		pod  []plan
		want network.Gate
	}{
		"both":       {[]plan{four, six}, network.Gate{Position: network.GateHeld, Ports: []uint16{80, 443}, Only4: []uint16{443}}},
		"IPv4 alone": {[]plan{four}, network.Gate{Position: network.GateHeld, Ports: []uint16{80, 443}}},
		"IPv6 alone": {[]plan{six}, network.Gate{Position: network.GateHeld, Ports: []uint16{80}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorldOf(t, one.pod...)
			l := w.open(t)
			must(t, l.SetGate(t.Context(), network.Gate{Position: network.GateHeld, Ports: []uint16{443, 80}, Only4: []uint16{443}}))
			got, err := w.open(t).Gate(t.Context())
			must(t, err)
			if got.Position != one.want.Position || !slices.Equal(got.Ports, one.want.Ports) || !slices.Equal(got.Only4, one.want.Only4) {
				t.Fatalf("read %+v, not %+v", got, one.want)
			}
			for _, r := range l.Mend(t.Context(), false) {
				if !r.OK || r.Repaired {
					t.Errorf("%+v", r)
				}
			}
		})
	}
}

func TestKeepAlivesAreAnsweredAsleepByEachFamily(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		w, l, s := answering(t, w)
		conns, flows := dialManyBy(t, w, f, 3)
		heard := listen(t, w)
		misses := watch(t, l)
		for _, g := range []network.Gate{held(echoPort), parked} {
			heard.reset()
			asleepKnowing(t, l, s, g, flows)
			eventually(t, "each connection's keep-alive is answered twice", func() bool { return heard.fromPod(2) == len(conns) })
			if n := len(misses); n > 0 {
				t.Fatalf("%s: %d misses by keep-alives", g.Position, n)
			}
			for k, c := range conns {
				_, err := fmt.Fprintf(c, "connection %d\n", k)
				must(t, err)
				missed(t, misses, f.pod)
				wokenKnowing(t, l, s)
				must(t, c.SetDeadline(time.Now().Add(answerTime)))
				must(t, hear(c, fmt.Sprintf("connection %d", k)))
				must(t, c.SetDeadline(time.Time{}))
				drain(misses)
				if k < len(conns)-1 {
					asleepKnowing(t, l, s, g, flows)
				}
			}
		}
	})
}

// What was kept and is no keep-alive is put back, whole.
func TestKeptSegmentsArePutBackByIPv6(t *testing.T) {
	w, l, s := answering(t, newWorldOf(t, six))
	c, err := w.dialBy(six, echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
	must(t, l.HoldKeepAlives(t.Context()))
	must(t, l.Disconnect(t.Context()))
	s.freeze()
	misses := watch(t, l)
	must(t, c.(*net.TCPConn).CloseWrite()) // which has no keep-alive's look
	missed(t, misses, six.pod)
	wokenKnowing(t, l, s)
	must(t, c.SetDeadline(time.Now().Add(answerTime)))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
}

func TestSpoofedSourceOfIPv6IsDropped(t *testing.T) {
	w, l, s := awakeIn(t, newWorldOf(t, four, six))
	addAddr(t, handle(t, s.ns), "eth0", addrOf("fd99::77"), 128)
	before, err := l.Spoofed(t.Context())
	must(t, err)
	ln := inside(t, w.client, func() (*net.UDPConn, error) { return net.ListenUDP("udp6", &net.UDPAddr{Port: 9}) })
	defer ln.Close()
	for _, from := range []string{"fd99::77", "fd99::2"} {
		c := inside(t, s.ns, func() (net.Conn, error) {
			return net.DialUDP("udp6", &net.UDPAddr{IP: net.ParseIP(from)}, &net.UDPAddr{IP: six.client.AsSlice(), Port: 9})
		})
		defer c.Close()
		_, err := fmt.Fprint(c, from)
		must(t, err)
	}
	must(t, ln.SetReadDeadline(time.Now().Add(answerTime)))
	buf := make([]byte, 100)
	n, err := ln.Read(buf)
	must(t, err)
	if got := string(buf[:n]); got != "fd99::2" {
		t.Fatalf("a datagram from %s got out first", got)
	}
	now, err := l.Spoofed(t.Context())
	must(t, err)
	if now.Packets != before.Packets+1 {
		t.Errorf("%d packets count as spoofed", now.Packets-before.Packets)
	}
}

// P forwards for the sandbox, not for its neighbours, although all its interfaces forward.
func TestPodDoesNotRouteIPv6ForOthers(t *testing.T) {
	w := newWorldOf(t, four, six)
	w.open(t)
	far := addrOf("fd98::1")
	must(t, handle(t, w.client).RouteAdd(&netlink.Route{Dst: hostNet(far), Gw: six.pod.AsSlice()}))
	node := handle(t, w.node)
	addAddr(t, node, "br0", far, 128)
	eventually(t, "the far address is in use", func() bool { return inUse(t, node, far) })
	c, err := tryInside(w.client, func() (net.Conn, error) {
		return net.DialTimeout("tcp6", netip.AddrPortFrom(far, 9).String(), 100*time.Millisecond)
	})
	if err == nil {
		c.Close()
	}
	if refused(err) || err == nil {
		t.Fatalf("P routed a neighbour's packet: %v", err)
	}
}

func TestIPv6LadderNamesAndMends(t *testing.T) {
	t.Parallel()
	for _, b := range []struct {
		name, rung string
		also       []string
		do         func(t *testing.T, h *netlink.Handle, hib0 netlink.Link)
	}{
		{"link down", "link", []string{"route", "neighbour", "inner"}, func(t *testing.T, h *netlink.Handle, hib0 netlink.Link) {
			must(t, h.LinkSetDown(hib0))
		}},
		{"gateway address deleted", "link", []string{"route", "neighbour"}, func(t *testing.T, h *netlink.Handle, hib0 netlink.Link) {
			must(t, h.AddrDel(hib0, &netlink.Addr{IPNet: hostNet(six.gateway)}))
		}},
		{"route to the sandbox deleted", "route", nil, func(t *testing.T, h *netlink.Handle, _ netlink.Link) {
			must(t, h.RouteDel(&netlink.Route{Dst: hostNet(six.pod), Table: 4242001}))
		}},
		{"default route deleted", "route", nil, func(t *testing.T, h *netlink.Handle, _ netlink.Link) {
			must(t, h.RouteDel(&netlink.Route{Dst: everywhere(six.pod), Gw: six.router.AsSlice()}))
		}},
		{"neighbour deleted", "neighbour", nil, func(t *testing.T, h *netlink.Handle, hib0 netlink.Link) {
			must(t, h.NeighDel(&netlink.Neigh{LinkIndex: hib0.Attrs().Index, IP: six.pod.AsSlice()}))
		}},
		{"neighbour wrong", "neighbour", nil, func(t *testing.T, h *netlink.Handle, hib0 netlink.Link) {
			must(t, h.NeighSet(&netlink.Neigh{
				LinkIndex: hib0.Attrs().Index, IP: six.pod.AsSlice(), State: netlink.NUD_PERMANENT, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
			}))
		}},
		{"routing rule deleted", "policy", nil, func(t *testing.T, h *netlink.Handle, _ netlink.Link) {
			rule, mask := netlink.NewRule(), uint32(0x30000000)
			rule.Family, rule.Priority, rule.Mark, rule.Mask, rule.Table = netlink.FAMILY_V6, 10, 0x10000000, &mask, 4242001
			must(t, h.RuleDel(rule))
		}},
		{"kernel's rule is back", "policy", nil, func(t *testing.T, h *netlink.Handle, _ netlink.Link) {
			rule := netlink.NewRule()
			rule.Family, rule.Priority, rule.Table = netlink.FAMILY_V6, 0, 255
			must(t, h.RuleAdd(rule))
		}},
	} {
		t.Run(b.name, func(t *testing.T) {
			w, l, _ := awakeIn(t, newWorldOf(t, four, six))
			changes := told(t, l)
			sure(t, w, changes)
			h := handle(t, w.pod)
			b.do(t, h, get(t, h, "hib0"))
			select {
			case <-changes:
			case <-time.After(10 * time.Second):
				t.Error("the change is not told")
			}
			mendedBy(t, l, b.rung, b.also)
			c, err := w.dialBy(six, echoPort, answerTime)
			must(t, err)
			defer c.Close()
			must(t, say(c, "mended", answerTime))
		})
	}
	t.Run("forwarding off", func(t *testing.T) {
		w, l, _ := awakeIn(t, newWorldOf(t, four, six))
		inside(t, w.pod, func() (any, error) {
			return nil, os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("0"), 0)
		})
		mendedBy(t, l, "policy", nil)
	})
}

// mendedBy climbs the ladder twice: the first time the rung is mended, then nothing.
func mendedBy(t *testing.T, l *network.Link, rung string, also []string) {
	t.Helper()
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK {
			t.Errorf("not mended: %+v", r)
		}
		if broken := r.Name == rung; broken != r.Repaired && !(r.Repaired && slices.Contains(also, r.Name)) {
			t.Errorf("%+v", r)
		}
	}
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK || r.Repaired {
			t.Errorf("second look: %+v", r)
		}
	}
}

// What P finds too long for the way on, it tells the sandbox.
func TestSandboxIsToldOfTooLongPacketsByIPv6(t *testing.T) {
	w, _, s := awakeIn(t, newWorldOf(t, four, six))
	must(t, say(w.datagrams(t, six), "warm", answerTime))
	h := handle(t, w.pod)
	must(t, h.RouteAdd(&netlink.Route{LinkIndex: get(t, h, "eth0").Attrs().Index, Dst: hostNet(six.client), MTU: 1400}))
	u := inside(t, s.ns, func() (net.Conn, error) { return net.Dial("udp6", netip.AddrPortFrom(six.client, 9).String()) }).(*net.UDPConn)
	defer u.Close()
	raw, err := u.SyscallConn()
	must(t, err)
	must(t, raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_DO)
	}))
	must(t, err)
	eventually(t, "the sandbox knows the path's MTU", func() bool {
		send(u, 1440)
		return option(t, u, unix.SOL_IPV6, unix.IPV6_MTU) == 1400
	})
}

// A sandbox whose pod has another address of IPv6 now keeps its own.
func TestAnotherAddressOfIPv6(t *testing.T) {
	w := newWorldOf(t, four, six)
	before, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	h, now := handle(t, w.pod), six
	now.pod = addrOf("fd99::77")
	eth0 := get(t, h, "eth0")
	must(t, h.AddrDel(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: six.pod.AsSlice(), Mask: net.CIDRMask(64, 128)}}))
	addAddr(t, h, "eth0", now.pod, 64)
	eventually(t, "the new address is in use", func() bool { return inUse(t, h, now.pod) })
	w.att, err = network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	w.att.Follow(before)
	w, l, s := answering(t, w)
	conns, flows := dialManyBy(t, w, now, 1)
	must(t, say(w.datagrams(t, now), "datagram", answerTime))
	must(t, say(conns[0], strings.Repeat("a long line ", 1<<14), answerTime))
	out := inside(t, w.client, func() (net.Listener, error) { return net.Listen("tcp6", ":7100") })
	defer out.Close()
	go echoTCP(out)
	c := inside(t, s.ns, func() (net.Conn, error) {
		return net.DialTimeout("tcp6", netip.AddrPortFrom(six.client, 7100).String(), answerTime)
	})
	defer c.Close()
	must(t, say(c, "outward", answerTime))
	flows[0].Own = netip.AddrPortFrom(six.pod, echoPort) // as the sandbox lists it
	misses := watch(t, l)
	asleepKnowing(t, l, s, held(echoPort), flows)
	_, err = conns[0].Write([]byte("sent asleep\n"))
	must(t, err)
	missed(t, misses, now.pod)
	wokenKnowing(t, l, s)
	must(t, conns[0].SetDeadline(time.Now().Add(answerTime)))
	must(t, hear(conns[0], "sent asleep"))
}

// Three sleeps of a real sandbox with both families, and one of IPv6 alone.
func TestRunscSleepsThreeTimesByEachFamily(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		l := w.open(t)
		must(t, l.PrepareInner(t.Context()))
		g := newGvisor(t, w.inner)
		g.start(t)
		must(t, l.Connect(t.Context()))
		c := dialRetryBy(t, w, f)
		defer c.Close()
		must(t, say(c, "before any sleep", answerTime))
		sound(t, l)
		misses := watch(t, l)
		for i, gate := range []network.Gate{held(echoPort), parked, held(echoPort)} {
			must(t, l.HoldKeepAlives(t.Context()))
			must(t, l.Disconnect(t.Context()))
			must(t, l.Quiet(t.Context(), 20*time.Millisecond))
			must(t, l.SetGate(t.Context(), gate))
			known, err := l.LearnConnections(t.Context(), []network.Flow{flowOf(c)})
			must(t, err)
			if known != 1 {
				t.Errorf("%d connections are known", known)
			}
			image := g.save(t)
			drain(misses)
			if f == six {
				if answer := ping6(w.client, six); answer != pingReply {
					t.Errorf("asleep: %s", answer)
				}
			}
			line := fmt.Sprintf("said during sleep %d", i)
			must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
			_, err = c.Write([]byte(line + "\n"))
			must(t, err)
			missed(t, misses, f.pod)

			must(t, l.PrepareInner(t.Context()))
			g.restore(t, image)
			start := time.Now()
			must(t, l.SetGate(t.Context(), opened))
			must(t, l.Connect(t.Context()))
			must(t, l.ReleaseKeepAlives(t.Context()))
			must(t, hear(c, line))
			t.Logf("sleep %d (%s): answered %v after the restore", i, gate.Position, time.Since(start))
			sound(t, l)
			fresh := dialRetryBy(t, w, f)
			must(t, say(fresh, "a new connection", answerTime))
			must(t, fresh.Close())
		}
	})
}

func dialRetryBy(t *testing.T, w *world, f plan) (c net.Conn) {
	t.Helper()
	eventually(t, "a connection", func() (ok bool) {
		var err error
		c, err = w.dialBy(f, echoPort, time.Second)
		return err == nil
	})
	return c
}
