package network_test

import (
	"bufio"
	"context"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// others waits until what others have begun stands still.
func others(t *testing.T, l *network.Link) uint64 {
	t.Helper()
	settled(t, l)
	c, err := l.ByClients(t.Context())
	must(t, err)
	return c.Packets
}

// A peer is a server at the client's, whom the sandbox calls.
func (w *world) peer(t *testing.T, p plan) (theirs, ours net.Conn) {
	t.Helper()
	ln := inside(t, w.client, func() (net.Listener, error) {
		return net.Listen(p.tcp(), netip.AddrPortFrom(p.client, 0).String())
	})
	defer ln.Close()
	ours = inside(t, w.standIn.ns, func() (net.Conn, error) { return net.DialTimeout(p.tcp(), ln.Addr().String(), answerTime) })
	t.Cleanup(func() { ours.Close() })
	theirs, err := ln.Accept()
	must(t, err)
	t.Cleanup(func() { theirs.Close() })
	return theirs, ours
}

// passes has one end say a line that the other hears.
func passes(t *testing.T, from, to net.Conn) {
	t.Helper()
	must(t, to.SetDeadline(time.Now().Add(answerTime)))
	_, err := from.Write([]byte("a line\n"))
	must(t, err)
	_, err = bufio.NewReader(to).ReadString('\n')
	must(t, err)
}

// What others begin is told apart from what the sandbox begins, and the answers to that; whichever way the packets took before.
func TestWhatOthersBegin(t *testing.T) {
	t.Parallel()
	for _, p := range []plan{four, six} {
		for way, slow := range map[string]bool{"past the stack": false, "through it": true} {
			t.Run(p.name+" "+way, func(t *testing.T) {
				w := newWorldOf(t, p)
				w.slow = slow
				_, l, s := awakeIn(t, w)
				w.standIn = s
				open, apart := network.Gate{}, network.Gate{Ports: []uint16{echoPort}, Clients: true}
				served := w.talk(t, p)
				must(t, say(served, "before", answerTime))
				known, knownHere := w.peer(t, p)
				third, thirdHere := w.peer(t, p)
				must(t, l.SetGate(t.Context(), apart))
				if got, err := l.Gate(t.Context()); err != nil || !got.Clients {
					t.Fatalf("read back: %+v, %v", got, err)
				}
				now := others(t, l)
				same := func(what string) {
					t.Helper()
					if n := others(t, l); n != now {
						t.Errorf("%s: %d packets are taken for others' use", what, n-now)
						now = n
					}
				}
				more := func(what string) {
					t.Helper()
					n := others(t, l)
					if n == now {
						t.Errorf("%s: it is not told", what)
					}
					now = n
				}
				new, newHere := w.peer(t, p)
				passes(t, newHere, new)
				passes(t, new, newHere)
				same("a connection of the sandbox's")
				passes(t, knownHere, known)
				passes(t, known, knownHere)
				same("an earlier one, on which it speaks first")
				udp := w.askByDatagram(t, p)
				same("a datagram of the sandbox's and its answer")
				must(t, udp.Close())
				passes(t, third, thirdHere)
				more("a peer that speaks unasked")
				must(t, say(served, "again", answerTime))
				more("a client on a connection from before")
				c := w.talk(t, p)
				more("a client's new connection")
				must(t, say(c, "and says", answerTime))
				more("what it says")
				u := inside(t, w.client, func() (net.Conn, error) { return net.Dial(p.udp(), p.at(echoPort)) })
				defer u.Close()
				must(t, say(u, "x", answerTime))
				more("a client's datagram")

				must(t, l.SetGate(t.Context(), open))
				must(t, l.Quicken(t.Context()))
				if why := l.FastPath(); (why != "") != slow {
					t.Errorf("afterwards, the fast path: %q", why)
				}
				must(t, say(served, "after", answerTime))
				if n := others(t, l); n != now {
					t.Error("it is still told apart")
				}
			})
		}
	}
}

// askByDatagram has the sandbox ask a server of datagrams, which answers.
func (w *world) askByDatagram(t *testing.T, p plan) net.Conn {
	t.Helper()
	server := inside(t, w.client, func() (net.PacketConn, error) {
		var c net.ListenConfig
		return c.ListenPacket(context.Background(), p.udp(), netip.AddrPortFrom(p.client, 0).String())
	})
	defer server.Close()
	asks := inside(t, w.standIn.ns, func() (net.Conn, error) { return net.Dial(p.udp(), server.LocalAddr().String()) })
	must(t, asks.SetDeadline(time.Now().Add(answerTime)))
	_, err := asks.Write([]byte("?"))
	must(t, err)
	b := make([]byte, 10)
	must(t, server.SetDeadline(time.Now().Add(answerTime)))
	_, from, err := server.ReadFrom(b)
	must(t, err)
	_, err = server.WriteTo([]byte("!"), from)
	must(t, err)
	_, err = asks.Read(b)
	must(t, err)
	return asks
}

// Probes, and what is ignored, are nobody's use while others are told apart, either; one that was no probe is.
func TestProbesAreNotOthersUse(t *testing.T) {
	t.Parallel()
	eachWay(t, time.Hour, func(t *testing.T, w *world, l *network.Link, p plan) {
		heard := listenToYoung(t, l)
		must(t, l.SetGate(t.Context(), network.Gate{Ports: []uint16{echoPort}, Clients: true}))
		now := others(t, l)
		c := w.talk(t, p)
		must(t, say(c, "is it well?", answerTime))
		if n := others(t, l); n != now {
			t.Fatalf("%d packets of a probe's are taken for use", n-now)
		}
		var last network.Said
		eventually(t, "told what it says", func() bool { text, s := heard.of(c.LocalAddr()); last = s; return text != "" })
		must(t, l.Used(t.Context(), last))
		if n := others(t, l); n != now+1 {
			t.Fatalf("what was said is %d packets of others'", n-now)
		}
	})
}

func TestIgnoredTrafficIsNotOthersUse(t *testing.T) {
	w := newWorld(t)
	w.ignore = []network.Filter{{Port: echoPort}}
	_, l, s := awakeIn(t, w)
	w.standIn = s
	must(t, l.SetGate(t.Context(), network.Gate{Ports: []uint16{echoPort}, Clients: true}))
	now := others(t, l)
	c := w.talk(t, four)
	must(t, say(c, "a scrape", answerTime))
	if n := others(t, l); n != now {
		t.Fatalf("%d packets are taken for use", n-now)
	}
}
