package network_test

import (
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

func counters(t *testing.T, l *network.Link) network.Counters {
	t.Helper()
	c, err := l.Counters(t.Context())
	must(t, err)
	return c
}

// settled returns the counters once they stand still.
func settled(t *testing.T, l *network.Link) network.Counters {
	t.Helper()
	before := counters(t, l)
	for since := time.Now(); time.Since(since) < 100*time.Millisecond; {
		<-time.After(5 * time.Millisecond)
		if now := counters(t, l); now != before {
			before, since = now, time.Now()
		}
	}
	return before
}

func TestDataIsActivity(t *testing.T) {
	w, l, _ := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	opened := settled(t, l)
	if opened.Packets != 2 { // SYN and SYN-ACK
		t.Fatalf("a handshake counts %d", opened.Packets)
	}
	must(t, say(c, "x", answerTime))
	if got := settled(t, l).Packets - opened.Packets; got != 2 { // there and back
		t.Fatalf("two bytes of data each way count %d", got)
	}
	_, err = c.Write([]byte("y"))
	must(t, err)
	must(t, hearByte(c, 'y'))
	if got := settled(t, l).Packets - opened.Packets; got != 4 {
		t.Fatalf("a single pushed byte each way counts %d", got-2)
	}
	before := settled(t, l)
	must(t, c.Close())
	if got := settled(t, l).Packets - before.Packets; got != 2 { // FIN each way
		t.Fatalf("closing counts %d", got)
	}
}

func hearByte(c net.Conn, want byte) error {
	b := make([]byte, 1)
	if _, err := c.Read(b); err != nil {
		return err
	}
	if b[0] != want {
		return syscall.EBADMSG
	}
	return nil
}

func TestDatagramsAreActivity(t *testing.T) {
	w, l, _ := awake(t)
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	must(t, say(u, "x", answerTime))
	if got := settled(t, l).Packets; got != 2 {
		t.Fatalf("a datagram each way counts %d", got)
	}
}

// A sandbox that is cut off and wants to say something is not idle.
func TestWhatIsCutIsActivity(t *testing.T) {
	w, l, _ := awake(t)
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	must(t, l.SetGate(t.Context(), parked)) // still connected: it hears, and can't answer
	_, err := u.Write([]byte("x"))
	must(t, err)
	if got := settled(t, l).Packets; got != 2 {
		t.Fatalf("a datagram and its answer, cut, count %d", got)
	}
	unsaid, err := l.Unsaid(t.Context())
	must(t, err)
	if unsaid.Packets != 1 {
		t.Fatalf("the answer counts %d as unsaid", unsaid.Packets)
	}
}

func TestKeepAlivesAreNotActivity(t *testing.T) {
	t.Parallel()
	w, l, _ := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "x", answerTime))
	must(t, keepAliveEachSecond(c))
	before := settled(t, l)
	seen := frames(t, w, "hib0")
	eventually(t, "four frames of keep-alives on the link", func() bool { return frames(t, w, "hib0") >= seen+4 })
	if now := counters(t, l); now != before {
		t.Fatalf("keep-alives count: %v, then %v", before, now)
	}
}

func keepAliveEachSecond(c net.Conn) error {
	return c.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 9})
}

func frames(t *testing.T, w *world, link string) uint64 {
	t.Helper()
	st := get(t, handle(t, w.pod), link).Attrs().Statistics
	return st.RxPackets + st.TxPackets
}

func TestLadderIsNotActivity(t *testing.T) {
	_, l, _ := awake(t)
	before := settled(t, l)
	for _, r := range l.Check(t.Context(), []uint16{echoPort}) {
		if !r.OK {
			t.Errorf("%+v", r)
		}
	}
	if now := settled(t, l); now != before {
		t.Fatalf("the ladder counts: %v, then %v", before, now)
	}
}

func TestCountersSurviveFlipsAndFlushes(t *testing.T) {
	w, l, _ := awake(t)
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	must(t, say(u, "x", answerTime))
	want := settled(t, l)
	for _, g := range []network.Gate{held(1), parked, opened} {
		must(t, l.SetGate(t.Context(), g))
		if now := counters(t, l); now != want {
			t.Fatalf("%s: %v, was %v", g.Position, now, want)
		}
	}
	flushRuleset(t, w.pod)
	must(t, l.SetGate(t.Context(), opened))
	if now := counters(t, l); now != want {
		t.Fatalf("after a flush: %v, was %v", now, want)
	}
	must(t, say(u, "x", answerTime))
	if now := settled(t, l); now.Packets != want.Packets+2 {
		t.Fatalf("after a flush: %v, was %v", now, want)
	}
}
