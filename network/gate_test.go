package network_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hibernate-runtime/hibernate/network"
)

func held(ports ...uint16) network.Gate {
	return network.Gate{Position: network.GateHeld, Ports: ports}
}

var (
	opened = network.Gate{Position: network.GateOpen}
	parked = network.Gate{Position: network.GateParked}
)

func TestOpenGatePassesTraffic(t *testing.T) {
	w, _, s := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
	if _, err := w.dial(closedPort, answerTime); !refused(err) {
		t.Fatalf("closed port: %v", err)
	}
	u := inside(t, w.client, func() (net.Conn, error) {
		return net.Dial("udp4", netip.AddrPortFrom(podAddr, echoPort).String())
	})
	defer u.Close()
	must(t, say(u, "datagram", answerTime))
	// and outward
	ln := inside(t, w.client, func() (net.Listener, error) { return net.Listen("tcp4", ":7100") })
	defer ln.Close()
	go echoTCP(ln)
	out := inside(t, s.ns, func() (net.Conn, error) { return net.DialTimeout("tcp4", clientAddr.String()+":7100", time.Second) })
	defer out.Close()
	must(t, say(out, "outward", answerTime))
}

func TestStrictReversePathFilter(t *testing.T) {
	w := newWorld(t)
	inside(t, w.pod, func() (any, error) {
		return nil, os.WriteFile("/proc/sys/net/ipv4/conf/all/rp_filter", []byte("1"), 0)
	})
	l := w.open(t)
	newStandIn(t, w)
	must(t, l.Connect(t.Context()))
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
}

func TestHeldGateCompletesHandshake(t *testing.T) {
	w := newWorld(t)
	l := w.open(t) // no sandbox at all
	f, err := l.Listen(t.Context(), echoPort, network.Backlog{})
	must(t, err)
	defer f.Close()
	must(t, l.SetGate(t.Context(), held(echoPort)))
	start := time.Now()
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	t.Logf("handshake took %v", time.Since(start))
	if _, err := w.dial(closedPort, answerTime); !refused(err) {
		t.Fatalf("closed port: %v", err)
	}
	ln, err := net.FileListener(f)
	must(t, err)
	defer ln.Close()
	in, err := ln.Accept()
	must(t, err)
	defer in.Close()
	if got := netip.MustParseAddrPort(in.RemoteAddr().String()).Addr(); got != clientAddr {
		t.Fatalf("accepted from %s", got)
	}
}

// A held connection is proxied after the wake, with the client's own address,
// while the gate is open; the sandbox's own use of that port is not disturbed.
func TestHeldConnectionIsProxied(t *testing.T) {
	w := newWorld(t)
	l := w.open(t)
	f, err := l.Listen(t.Context(), echoPort, network.Backlog{})
	must(t, err)
	defer f.Close()
	must(t, l.SetGate(t.Context(), held(echoPort)))
	client, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer client.Close()
	ln, err := net.FileListener(f)
	must(t, err)
	defer ln.Close()
	accepted, err := ln.Accept()
	must(t, err)
	defer accepted.Close()

	newStandIn(t, w)
	must(t, l.SetGate(t.Context(), opened))
	must(t, l.Connect(t.Context()))
	onward := dialFrom(t, w, client.LocalAddr())
	defer onward.Close()
	if got := netip.MustParseAddrPort(onward.LocalAddr().String()); got.Addr() != clientAddr || got.Port() < network.ProxyPortLow || got.Port() > network.ProxyPortHigh {
		t.Fatalf("dialed from %s", got)
	}
	go proxy(accepted, onward)
	must(t, say(client, "through the proxy", answerTime))
	direct, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer direct.Close()
	must(t, say(direct, "beside the proxy", answerTime))
}

func dialFrom(t *testing.T, w *world, client net.Addr) *net.TCPConn {
	t.Helper()
	pod, err := os.Open(w.pod)
	must(t, err)
	defer pod.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	c, err := network.Dial(ctx, pod, netip.MustParseAddrPort(client.String()), netip.AddrPortFrom(podAddr, echoPort))
	must(t, err)
	return c
}

func proxy(a, b net.Conn) {
	buf := make([]byte, 1024)
	for {
		n, err := a.Read(buf)
		if err != nil {
			return
		}
		b.Write(buf[:n])
		if n, err = b.Read(buf); err != nil {
			return
		}
		a.Write(buf[:n])
	}
}

func TestDialGivesUpWithItsContext(t *testing.T) {
	w := newWorld(t)
	w.open(t) // nothing behind: the SYN waits
	pod, err := os.Open(w.pod)
	must(t, err)
	defer pod.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	_, err = network.Dial(ctx, pod, netip.AddrPortFrom(clientAddr, 1), netip.AddrPortFrom(podAddr, echoPort))
	if ctx.Err() == nil || err == nil {
		t.Fatalf("dial: %v", err)
	}
}

func TestGateIsReadBack(t *testing.T) {
	w := newWorld(t)
	l := w.open(t)
	none := []uint16{}
	for _, g := range []network.Gate{
		opened, held(80, 443, 7000), parked, {Position: network.GateHeld, Ports: none},
		{Position: network.GateHeld, Ports: []uint16{80}, Datagrams: []uint16{53, 123}},
		{Position: network.GateParked, Ports: none, Datagrams: none}, {Position: network.GateParked, Datagrams: []uint16{53}},
	} {
		must(t, l.SetGate(t.Context(), g))
		got, err := l.Gate(t.Context())
		must(t, err)
		if !reflect.DeepEqual(got, g) { // nil and empty differ
			t.Fatalf("set %#v, read %#v", g, got)
		}
	}
}

func TestSpoofedSourceIsDropped(t *testing.T) {
	w, l, s := awake(t)
	h := handle(t, s.ns)
	addAddr(t, h, "eth0", netip.MustParseAddr("10.99.0.77"), 32)
	before, err := l.Spoofed(t.Context())
	must(t, err)
	c := inside(t, s.ns, func() (net.Conn, error) {
		return net.DialUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 99, 0, 77)}, &net.UDPAddr{IP: clientAddr.AsSlice(), Port: 9})
	})
	defer c.Close()
	ln := inside(t, w.client, func() (*net.UDPConn, error) { return net.ListenUDP("udp4", &net.UDPAddr{Port: 9}) })
	defer ln.Close()
	for i := range 3 {
		_, err := fmt.Fprintf(c, "spoofed %d", i)
		must(t, err)
	}
	eventually(t, "three spoofed packets counted", func() bool {
		now, err := l.Spoofed(t.Context())
		must(t, err)
		return now.Packets >= before.Packets+3
	})
	ln.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if n, _, err := ln.ReadFrom(make([]byte, 100)); err == nil {
		t.Fatalf("%d spoofed bytes got out", n)
	}
}

// P forwards for the sandbox, not for its neighbours.
func TestPodDoesNotRouteForOthers(t *testing.T) {
	w := newWorld(t)
	w.open(t)
	h := handle(t, w.client)
	far := netip.MustParseAddr("10.98.0.1")
	must(t, h.RouteAdd(&netlink.Route{Dst: hostNet(far), Gw: podAddr.AsSlice()}))
	node := handle(t, w.node)
	addAddr(t, node, "br0", far, 32)
	if _, err := tryInside(w.client, func() (net.Conn, error) { return net.DialTimeout("tcp4", far.String()+":9", 100*time.Millisecond) }); refused(err) || err == nil {
		t.Fatalf("P routed a neighbour's packet: %v", err)
	}
}

func TestFlipsAreQuick(t *testing.T) {
	w := newWorld(t)
	l := w.open(t)
	const n = 100
	times := make([]time.Duration, 0, 2*n)
	for range n {
		for _, g := range []network.Gate{held(80, 443), opened} {
			start := time.Now()
			must(t, l.SetGate(t.Context(), g))
			times = append(times, time.Since(start))
		}
	}
	slices.Sort(times)
	t.Logf("flip: p50 %v, p99 %v, max %v", times[n], times[2*n*99/100], times[2*n-1])
}
