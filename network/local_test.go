package network_test

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"

	"github.com/hibernate-runtime/hibernate/network"
)

// local are the listeners for P's own connections.
type local struct{ listeners []net.Listener }

func listenLocal(t *testing.T, l *network.Link) *local {
	t.Helper()
	files, err := l.ListenLocal(t.Context())
	must(t, err)
	return filesToListeners(t, files)
}

// gets dials from inside the pod, and returns where the connection came out; nothing when it was refused.
func (lo *local) gets(t *testing.T, w *world, at string) string {
	t.Helper()
	c, err := tryInside(w.pod, func() (net.Conn, error) { return net.DialTimeout("tcp", at, 10*time.Second) })
	if err != nil {
		if !refused(err) {
			t.Errorf("%s: %v", at, err)
		}
		return ""
	}
	defer c.Close()
	for _, ln := range lo.listeners {
		must(t, ln.(*net.TCPListener).SetDeadline(time.Now().Add(100*time.Millisecond)))
		got, err := ln.Accept()
		if os.IsTimeout(err) {
			continue
		}
		must(t, err)
		defer got.Close()
		go func() { _, _ = got.Write([]byte("heard\n")) }()
		must(t, hear(c, "heard"))
		return got.LocalAddr().String()
	}
	t.Errorf("%s: connected to something else", at)
	return ""
}

var insideThePod = []string{"127.0.0.1:7000", "127.0.0.1:8123", "127.8.8.8:7000", "[::1]:7000", netip.AddrPortFrom(podAddr, echoPort).String()}

// What P's processes say to a loopback address or the pod's own comes to the listener, whatever the port and the gate.
func TestConnectionsFromInsideThePod(t *testing.T) {
	w, l, _ := awake(t)
	if got := (&local{}).gets(t, w, insideThePod[0]); got != "" {
		t.Fatalf("without a listener: %s", got)
	}
	lo := listenLocal(t, l)
	held, err := l.Listen(t.Context(), echoPort, network.Backlog{})
	must(t, err)
	defer held.Close()
	for _, position := range []network.Position{network.GateOpen, network.GateHeld, network.GateParked} {
		must(t, l.SetGate(t.Context(), network.Gate{Position: position, Ports: []uint16{echoPort}}))
		for _, at := range insideThePod {
			if got := lo.gets(t, w, at); got != at {
				t.Errorf("%s: a connection to %s came out at %q", position, at, got)
			}
		}
	}
}

// A server that listens in P itself is still reached there.
func TestServersOfThePodsOwn(t *testing.T) {
	w, l, _ := awake(t)
	lo := listenLocal(t, l)
	own := inside(t, w.pod, func() (net.Listener, error) { return net.Listen("tcp4", "127.0.0.1:0") })
	defer own.Close()
	go echoTCP(own)
	c := inside(t, w.pod, func() (net.Conn, error) { return net.Dial("tcp4", own.Addr().String()) })
	defer c.Close()
	must(t, say(c, "its own", answerTime))
	if got := lo.gets(t, w, insideThePod[1]); got != insideThePod[1] {
		t.Errorf("another port came out at %q", got)
	}
}

// Connections of others don't come to the listener, and the sandbox's own packets don't.
func TestLocalListenersAreOfNoUseToOthers(t *testing.T) {
	w, l, _ := awake(t)
	listenLocal(t, l)
	c, err := w.dial(echoPort, 10*time.Second)
	must(t, err)
	defer c.Close()
	must(t, say(c, "the sandbox", answerTime))
}

// A connection from inside reaches the sandbox over the link, and is use.
func TestLocalClientIsUse(t *testing.T) {
	t.Parallel()
	eachFamily(t, func(t *testing.T, w *world, f plan) {
		_, l, _ := awakeIn(t, w)
		clients := l.LocalClients(f.client)
		if len(clients) != len(w.families) || clients[0].Addr().Is4() != f.client.Is4() {
			t.Fatalf("clients are %v", clients)
		}
		for _, client := range clients {
			before := settled(t, l)
			c, err := l.Dial(t.Context(), client, echoPort)
			must(t, err)
			defer c.Close()
			must(t, say(c, "over the link", answerTime))
			if after := settled(t, l); after.Packets <= before.Packets {
				t.Errorf("%v counted, and before %v", after, before)
			}
		}
	})
}

// What was flushed is put back, and what was made goes with the link.
func TestLocalTablesAreMendedAndRemoved(t *testing.T) {
	w, l, _ := awake(t)
	lo := listenLocal(t, l)
	flushRuleset(t, w.pod)
	if got := lo.gets(t, w, insideThePod[0]); got != "" {
		t.Fatalf("after the flush it came out at %s", got)
	}
	for _, r := range l.Mend(t.Context(), true) {
		if r.Name == "gate" && (!r.OK || !r.Repaired) {
			t.Errorf("%+v", r)
		}
	}
	if got := lo.gets(t, w, insideThePod[0]); got != insideThePod[0] {
		t.Errorf("after the repair it came out at %q", got)
	}
	must(t, l.Remove(t.Context()))
	tables := inside(t, w.pod, func() ([]*nftables.Table, error) {
		c, err := nftables.New()
		if err != nil {
			return nil, err
		}
		return c.ListTables()
	})
	for _, table := range tables {
		t.Errorf("table %s of family %v is left", table.Name, table.Family)
	}
}

// accepts says whether a connection waits at one of the listeners.
func (lo *local) accepts(t *testing.T, within time.Duration) bool {
	t.Helper()
	for _, ln := range lo.listeners {
		must(t, ln.(*net.TCPListener).SetDeadline(time.Now().Add(within)))
		c, err := ln.Accept()
		if err == nil {
			must(t, c.Close())
			return true
		}
	}
	return false
}

// While the gate is held, and only then, connections from the probes' networks come to the probes' listener; those of others,
// and to closed ports, go where they went.
func TestProbesListener(t *testing.T) {
	for name, c := range map[string]struct {
		from    []netip.Prefix
		probing bool
	}{
		"its address": {prefixes("10.99.0.3/32"), true}, "its network": {prefixes("192.0.2.0/24", "10.99.0.0/24"), true},
		"of others": {prefixes("10.99.0.4/32", "fd00::/8"), false},
	} {
		t.Run(name, func(t *testing.T) {
			w, l, _ := awake(t)
			listenLocal(t, l)
			files, err := l.ListenProbes(t.Context(), c.from)
			must(t, err)
			probing := filesToListeners(t, files)
			file, err := l.Listen(t.Context(), echoPort, network.Backlog{})
			must(t, err)
			held := filesToListeners(t, []*os.File{file})
			must(t, l.SetGate(t.Context(), network.Gate{Position: network.GateHeld, Ports: []uint16{echoPort}}))
			conn, err := w.dial(echoPort, 10*time.Second)
			must(t, err)
			defer conn.Close()
			expected, other := held, probing
			if c.probing {
				expected, other = probing, held
			}
			if !expected.accepts(t, 5*time.Second) || other.accepts(t, 50*time.Millisecond) {
				t.Error("the connection is at the wrong listener")
			}
			if _, err := w.dial(closedPort, 10*time.Second); !refused(err) {
				t.Errorf("a closed port: %v", err)
			}
			must(t, l.SetGate(t.Context(), network.Gate{Position: network.GateOpen}))
			open, err := w.dial(echoPort, 10*time.Second)
			must(t, err)
			defer open.Close()
			must(t, say(open, "the sandbox", answerTime))
		})
	}
}

func filesToListeners(t *testing.T, files []*os.File) *local {
	t.Helper()
	var out local
	for _, f := range files {
		ln, err := net.FileListener(f)
		must(t, err)
		must(t, f.Close())
		t.Cleanup(func() { ln.Close() })
		out.listeners = append(out.listeners, ln)
	}
	return &out
}
