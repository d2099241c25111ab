package network_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// movedAddr is the pod's in these tests; the sandbox keeps podAddr.
var movedAddr = netip.MustParseAddr("10.99.0.77")

// moved is awake in a pod whose address has changed since the sandbox began.
func moved(t *testing.T) (*world, *network.Link, *standIn) {
	t.Helper()
	w := newWorld(t)
	before, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	h := handle(t, w.pod)
	eth0 := get(t, h, "eth0")
	must(t, h.AddrDel(eth0, &netlink.Addr{IPNet: &net.IPNet{IP: podAddr.AsSlice(), Mask: net.CIDRMask(24, 32)}}))
	addAddr(t, h, "eth0", movedAddr, 24)
	must(t, h.RouteReplace(&netlink.Route{LinkIndex: eth0.Attrs().Index, Gw: routerAddr.AsSlice()}))
	w.att, err = network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	w.att.Follow(before)
	w, l, s := awakeIn(t, w)
	inside(t, s.ns, func() (any, error) {
		return nil, os.WriteFile("/proc/sys/net/ipv4/tcp_invalid_ratelimit", []byte("0"), 0)
	})
	return w, l, s
}

func dialMoved(t *testing.T, w *world, port uint16) net.Conn {
	t.Helper()
	c, err := tryInside(w.client, func() (net.Conn, error) {
		return net.DialTimeout("tcp4", netip.AddrPortFrom(movedAddr, port).String(), 10*time.Second)
	})
	must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// listenAt accepts one connection at the sandbox's own address.
func listenAt(t *testing.T, s *standIn, port uint16) <-chan net.Conn {
	t.Helper()
	ln := inside(t, s.ns, func() (net.Listener, error) { return net.Listen("tcp4", netip.AddrPortFrom(podAddr, port).String()) })
	t.Cleanup(func() { ln.Close() })
	accepted := make(chan net.Conn, 1)
	go func() {
		if c, err := ln.Accept(); err == nil {
			accepted <- c
		}
	}()
	return accepted
}

func TestAnotherAddressIsTheSandboxsOwn(t *testing.T) {
	w, l, s := moved(t)
	accepted := listenAt(t, s, 7300)
	c := dialMoved(t, w, 7300)
	in := <-accepted
	defer in.Close()
	if in.LocalAddr().String() != podAddr.String()+":7300" || in.RemoteAddr().String() != c.LocalAddr().String() {
		t.Errorf("the server sees %s ← %s; the client is %s", in.LocalAddr(), in.RemoteAddr(), c.LocalAddr())
	}
	go func() { in.Write([]byte("hello\n")) }()
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	must(t, hear(c, "hello"))

	back := inside(t, w.client, func() (net.Listener, error) { return net.Listen("tcp4", clientAddr.String()+":0") })
	defer back.Close()
	out := inside(t, s.ns, func() (net.Conn, error) { return net.DialTimeout("tcp4", back.Addr().String(), 10*time.Second) })
	defer out.Close()
	at, err := back.Accept()
	must(t, err)
	defer at.Close()
	if host, _, _ := net.SplitHostPort(at.RemoteAddr().String()); host != movedAddr.String() {
		t.Errorf("the sandbox calls as %s", at.RemoteAddr())
	}
	if why := l.FastPath(); !strings.Contains(why, "10.99.0.77 is 10.99.0.2 inside") {
		t.Errorf("fast path: %q", why)
	}
}

func TestAnotherAddressTakesDatagramsAndErrors(t *testing.T) {
	w, _, s := moved(t)
	datagrams := func(ns string, to string) net.Conn {
		c := inside(t, ns, func() (net.Conn, error) { return net.Dial("udp4", to) })
		t.Cleanup(func() { c.Close() })
		must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		return c
	}
	must(t, say(datagrams(w.client, movedAddr.String()+":7000"), "a datagram", answerTime))
	for name, c := range map[string]net.Conn{
		"of the client about the sandbox's": datagrams(s.ns, clientAddr.String()+":9"),
		"of the sandbox about the client's": datagrams(w.client, movedAddr.String()+":9"),
	} {
		_, err := c.Write([]byte("anybody?"))
		must(t, err)
		if _, err = c.Read(make([]byte, 9)); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("the error %s is not heard: %v", name, err)
		}
	}
}

func TestAnotherAddressSleepsAndWakes(t *testing.T) {
	w, l, s := moved(t)
	c := dialMoved(t, w, echoPort)
	must(t, say(c, "before", answerTime))
	ln, err := l.Listen(t.Context(), echoPort, network.Backlog{})
	must(t, err)
	listener, err := net.FileListener(ln)
	must(t, err)
	must(t, ln.Close())
	defer listener.Close()
	misses := watch(t, l)
	for range 3 {
		asleepKnowing(t, l, s, held(echoPort), []network.Flow{{
			Own:  netip.AddrPortFrom(podAddr, echoPort), // as the sandbox lists it
			Peer: netip.MustParseAddrPort(c.LocalAddr().String()),
		}})
		waiting := dialMoved(t, w, echoPort)
		in, err := listener.Accept()
		must(t, err)
		if in.LocalAddr().String() != movedAddr.String()+":7000" {
			t.Errorf("held at %s", in.LocalAddr())
		}
		_, err = c.Write([]byte("kept\n"))
		must(t, err)
		if m := <-misses; m.Address != movedAddr {
			t.Errorf("a miss of %s", m.Address)
		}
		wokenKnowing(t, l, s)
		must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		must(t, hear(c, "kept"))
		to, err := l.Dial(t.Context(), netip.MustParseAddrPort(waiting.LocalAddr().String()), echoPort)
		must(t, err)
		must(t, say(to, "through the proxy", answerTime))
		must(t, errors.Join(to.Close(), in.Close(), waiting.Close()))
		drain(misses)
	}
}

func TestKeepAlivesForAnotherAddress(t *testing.T) {
	t.Parallel()
	w, l, s := moved(t)
	c := dialMoved(t, w, echoPort)
	must(t, say(c, "hello", answerTime))
	must(t, c.SetDeadline(time.Time{}))
	must(t, c.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}))
	heard, misses := listen(t, w), watch(t, l)
	asleepKnowing(t, l, s, held(echoPort), []network.Flow{{
		Own: netip.AddrPortFrom(podAddr, echoPort), Peer: netip.MustParseAddrPort(c.LocalAddr().String()),
	}})
	defer s.thaw()
	eventually(t, "the keep-alive is answered three times", func() bool { return heard.fromPod(3) == 1 })
	if n := len(misses); n > 0 {
		t.Fatalf("%d misses by keep-alives", n)
	}
}

func TestConnectionsOfTheFormerAddressAreReset(t *testing.T) {
	w, l, s := moved(t)
	accepted := listenAt(t, s, 7300)
	c := dialMoved(t, w, 7300)
	in := <-accepted
	defer in.Close()
	must(t, l.Disconnect(t.Context()))
	must(t, l.SetGate(t.Context(), parked))
	before := &network.Attachment{Addresses: prefixes(podAddr.String() + "/24")}
	if n, err := l.ResetConnections(t.Context(), []network.Flow{flowOf(c)}, l.Attachment()); n != 0 || err != nil {
		t.Fatalf("where nothing has changed, %d connections are reset: %v", n, err)
	}
	n, err := l.ResetConnections(t.Context(), []network.Flow{
		{Own: netip.MustParseAddrPort(in.LocalAddr().String()), Peer: netip.MustParseAddrPort(in.RemoteAddr().String())},
		{Own: netip.MustParseAddrPort("127.0.0.1:7300"), Peer: netip.MustParseAddrPort("127.0.0.1:9")},
	}, before)
	if n != 1 || err != nil {
		t.Fatalf("%d connections are reset: %v", n, err)
	}
	must(t, in.SetDeadline(time.Now().Add(10*time.Second)))
	if _, err := in.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("inside: %v", err)
	}
	must(t, c.SetDeadline(time.Now().Add(50*time.Millisecond)))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a peer heard of it: %v", err)
	}
}

func TestLadderMendsTheTranslation(t *testing.T) {
	w, l, _ := moved(t)
	for range 3 {
		c := nft(t, w.pod)
		c.DelTable(&nftables.Table{Name: "hibernate", Family: nftables.TableFamilyNetdev})
		must(t, c.Flush())
		for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
			if !r.OK || r.Repaired != (r.Name == "translation") {
				t.Errorf("%+v", r)
			}
		}
		must(t, say(dialMoved(t, w, echoPort), "mended", answerTime))
	}
	must(t, l.Remove(t.Context()))
	tables, err := nft(t, w.pod).ListTables()
	must(t, err)
	for _, table := range tables {
		t.Errorf("table %s of family %d is left", table.Name, table.Family)
	}
}

func TestFollow(t *testing.T) {
	then := &network.Attachment{Addresses: prefixes("10.0.0.1/24", "10.0.0.2/24", "fd00::1/64")}
	for name, c := range map[string]struct {
		now  []netip.Prefix
		want string
	}{
		"the same":       {prefixes("10.0.0.1/16", "10.0.0.2/24", "fd00::1/64"), "map[]"},
		"another":        {prefixes("10.0.0.9/24", "10.0.0.2/24", "fd00::9/64"), "map[10.0.0.9:10.0.0.1 fd00::9:fd00::1]"},
		"another order":  {prefixes("10.0.0.2/24", "10.0.0.9/24"), "map[10.0.0.9:10.0.0.1]"},
		"one of another": {prefixes("fd00::1/64", "10.0.0.9/24"), "map[10.0.0.9:10.0.0.1]"},
		"more":           {prefixes("10.0.0.7/24", "10.0.0.8/24", "10.0.0.9/24"), "map[10.0.0.7:10.0.0.1 10.0.0.8:10.0.0.2]"},
	} {
		now := &network.Attachment{Addresses: c.now}
		now.Follow(then)
		if got := fmt.Sprint(now.Inside); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
	second := &network.Attachment{Addresses: prefixes("10.0.0.9/24")}
	second.Follow(&network.Attachment{Addresses: prefixes("10.0.0.1/24")})
	third := &network.Attachment{Addresses: prefixes("10.0.0.5/24")}
	third.Follow(second)
	if got := fmt.Sprint(third.Inside); got != "map[10.0.0.5:10.0.0.1]" {
		t.Errorf("a second change: %s", got)
	}
	home := &network.Attachment{Addresses: prefixes("10.0.0.1/24")}
	if home.Follow(third); home.Translated() {
		t.Errorf("back home: %v", home.Inside)
	}
}
