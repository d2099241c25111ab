package network_test

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// Traffic that a filter names is no use, whichever way the packets take, and all other traffic is.
func TestIgnoredTrafficIsNoActivity(t *testing.T) {
	t.Parallel()
	type ignoring struct {
		filter   network.Filter
		tcp, udp bool // ignored
	}
	from := netip.MustParsePrefix
	cases := map[plan]map[string]ignoring{four: {
		"port":                        {network.Filter{Port: echoPort}, true, true},
		"TCP's":                       {network.Filter{Protocol: unix.IPPROTO_TCP, Port: echoPort}, true, false},
		"UDP's":                       {network.Filter{Protocol: unix.IPPROTO_UDP, Port: echoPort}, false, true},
		"another port":                {network.Filter{Port: closedPort}, false, false},
		"address":                     {network.Filter{From: from("10.99.0.3/32")}, true, true},
		"network":                     {network.Filter{From: from("10.99.0.0/30")}, true, true},
		"everybody":                   {network.Filter{From: from("0.0.0.0/0")}, true, true},
		"another address":             {network.Filter{From: from("10.99.0.2/32")}, false, false},
		"another network":             {network.Filter{From: from("10.99.0.128/25")}, false, false},
		"of the other family":         {network.Filter{From: from("::/0")}, false, false},
		"port and address":            {network.Filter{Port: echoPort, From: from("10.99.0.3/32")}, true, true},
		"port and another's":          {network.Filter{Port: echoPort, From: from("10.99.0.4/32")}, false, false},
		"another port and an address": {network.Filter{Port: closedPort, From: from("10.99.0.3/32")}, false, false},
	}, six: {
		"TCP's and address":   {network.Filter{Protocol: unix.IPPROTO_TCP, Port: echoPort, From: from("fd99::3/128")}, true, false},
		"network":             {network.Filter{From: from("fd99::/126")}, true, true},
		"everybody":           {network.Filter{From: from("::/0")}, true, true},
		"another network":     {network.Filter{From: from("fd99::80/121")}, false, false},
		"of the other family": {network.Filter{From: from("0.0.0.0/0")}, false, false},
	}}
	for p, list := range cases {
		for name, c := range list {
			for way, slow := range map[string]bool{"past the stack": false, "through it": true} {
				t.Run(p.name+" "+name+" "+way, func(t *testing.T) {
					w := newWorldOf(t, p)
					w.slow, w.ignore = slow, []network.Filter{{Port: 1}, c.filter, {From: from("192.0.2.0/24")}, {From: from("2001:db8::/32")}}
					_, l, _ := awakeIn(t, w)
					if why := l.FastPath(); (why != "") != slow {
						t.Fatalf("the fast path: %q", why)
					}
					uses(t, w, l, p.tcp(), p, !c.tcp)
					uses(t, w, l, p.udp(), p, !c.udp)
				})
			}
		}
	}
}

// uses talks to the sandbox for longer than a packet that asks for the way, and wants that to be use or not.
func uses(t *testing.T, w *world, l *network.Link, how string, p plan, want bool) {
	t.Helper()
	before := settled(t, l)
	c := inside(t, w.client, func() (net.Conn, error) {
		return net.DialTimeout(how, p.at(echoPort), 10*time.Second)
	})
	defer c.Close()
	for range 5 {
		must(t, say(c, "is it use?", answerTime))
	}
	must(t, c.Close())
	after := settled(t, l)
	if got := after.Packets - before.Packets; (got > 0) != want || want && got < 10 {
		t.Errorf("%s: %d packets count", how, got)
	}
}

// What the sandbox says to a port of others is its own use, whatever is ignored of its own.
func TestIgnoredPortsAreTheWorkloads(t *testing.T) {
	for way, slow := range map[string]bool{"past the stack": false, "through it": true} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t)
			w.slow, w.ignore = slow, []network.Filter{{Port: 7070}}
			_, l, s := awakeIn(t, w)
			ln := inside(t, w.client, func() (net.Listener, error) { return net.Listen("tcp4", "10.99.0.3:7070") })
			defer ln.Close()
			go echoTCP(ln)
			before := settled(t, l)
			c := inside(t, s.ns, func() (net.Conn, error) { return net.DialTimeout("tcp4", "10.99.0.3:7070", 10*time.Second) })
			defer c.Close()
			must(t, say(c, "out there", answerTime))
			if after := settled(t, l); after.Packets-before.Packets < 4 {
				t.Errorf("%d packets count", after.Packets-before.Packets)
			}
		})
	}
}
