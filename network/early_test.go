package network_test

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// outward is a connection that the sandbox has made to a client's listener.
func outward(t *testing.T, w *world, s *standIn, f plan) (inner, outer net.Conn) {
	t.Helper()
	ln := inside(t, w.client, func() (net.Listener, error) { return net.Listen(f.tcp(), net.JoinHostPort(f.client.String(), "0")) })
	defer ln.Close()
	inner = inside(t, s.ns, func() (net.Conn, error) { return net.DialTimeout(f.tcp(), ln.Addr().String(), time.Second) })
	t.Cleanup(func() { inner.Close() })
	outer, err := ln.Accept()
	must(t, err)
	t.Cleanup(func() { outer.Close() })
	return inner, outer
}

// TestEarlyWordsArrive: what a sandbox says before the gate opens is said once it is open, and not only when TCP's timer is due: the sandbox
// is frozen by then, and can say nothing again.
func TestEarlyWordsArrive(t *testing.T) {
	for _, f := range []plan{four, six} {
		t.Run(f.tcp(), func(t *testing.T) {
			w, l, s := awakeIn(t, newWorldOf(t, f))
			inner, outer := outward(t, w, s, f)
			must(t, say2(inner, outer, "before"))
			must(t, l.SetGate(t.Context(), held(echoPort)))
			must(t, l.Disconnect(t.Context()))
			must(t, l.KeepEarly(t.Context()))
			long := make([]byte, 12000) // at once: the first window takes as much, and the interface makes segments of it
			for i := range long {
				long[i] = byte(i / 7)
			}
			_, err := inner.Write(long)
			must(t, err)
			time.Sleep(20 * time.Millisecond) // it is dropped at the gate
			s.freeze()
			defer s.thaw()
			must(t, outer.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
			if n, _ := outer.Read(make([]byte, 1)); n != 0 {
				t.Fatal("the gate is closed, and something came")
			}
			must(t, l.SetGate(t.Context(), opened))
			must(t, l.Connect(t.Context()))
			got := make([]byte, len(long))
			must(t, outer.SetReadDeadline(time.Now().Add(answerTime)))
			if n, err := io.ReadFull(outer, got); err != nil {
				t.Fatalf("%d bytes came: %v", n, err)
			}
			if string(got) != string(long) {
				t.Fatal("other bytes came")
			}
		})
	}
}

// say2 says a line at one end and hears it at the other.
func say2(from, to net.Conn, line string) error {
	if err := from.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if err := to.SetDeadline(time.Now().Add(answerTime)); err != nil {
		return err
	}
	if _, err := io.WriteString(from, line+"\n"); err != nil {
		return err
	}
	return hear(to, line)
}

// TestEarlyDatagramsArrive: those on whose way the gate opens, too; what was forgotten, or came while nobody kept it, doesn't.
func TestEarlyDatagramsArrive(t *testing.T) {
	w, l, s := awake(t)
	pc := inside(t, w.client, func() (net.PacketConn, error) {
		return net.ListenPacket("udp4", net.JoinHostPort(clientAddr.String(), "0"))
	})
	defer pc.Close()
	out := inside(t, s.ns, func() (net.Conn, error) { return net.Dial("udp4", pc.LocalAddr().String()) })
	defer out.Close()
	speak := func(line string) {
		t.Helper()
		_, err := io.WriteString(out, line)
		must(t, err)
	}
	settled := func() { time.Sleep(20 * time.Millisecond) }
	must(t, l.SetGate(t.Context(), held(echoPort)))
	speak("nobody keeps it")
	settled()
	must(t, l.KeepEarly(t.Context()))
	speak("forgotten")
	settled()
	l.ForgetEarly()
	speak("nobody keeps it either")
	settled()
	must(t, l.KeepEarly(t.Context()))
	speak("forgotten by the next")
	settled()
	must(t, l.KeepEarly(t.Context()))
	const n = 200
	said := make(chan struct{})
	go func() {
		defer close(said)
		for i := range n {
			fmt.Fprintf(out, "%d", i)
			if i > 20 {
				time.Sleep(100 * time.Microsecond)
			}
		}
	}()
	time.Sleep(5 * time.Millisecond)
	must(t, l.SetGate(t.Context(), network.Gate{Position: network.GateParked})) // as when the daemon dies in a wake
	must(t, l.SetGate(t.Context(), opened))
	<-said
	// In the moment when rules change the kernel may show a packet twice, or show one that it lets pass: as on any network, a datagram may come twice.
	buf := make([]byte, 64)
	seen, twice := map[string]int{}, 0
	for {
		wait := 100 * time.Millisecond
		if len(seen) < n {
			wait = answerTime
		}
		must(t, pc.SetReadDeadline(time.Now().Add(wait)))
		k, _, err := pc.ReadFrom(buf)
		if err != nil {
			break
		}
		if seen[string(buf[:k])]++; seen[string(buf[:k])] > 1 {
			twice++
		}
	}
	for i := range n {
		if seen[fmt.Sprint(i)] == 0 {
			t.Errorf("%d didn't come", i)
		}
	}
	if len(seen) > n || twice > 4 {
		t.Errorf("%d came twice, and in all: %v", twice, seen)
	}
}
