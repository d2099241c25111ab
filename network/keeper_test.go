package network_test

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/network/keepalive"
)

// dialMany connects n clients that ask each second whether the connection is there, and give it up after two questions
// without an answer.
func dialMany(t *testing.T, w *world, n int) (conns []net.Conn, flows []network.Flow) {
	t.Helper()
	return dialManyBy(t, w, four, n)
}

func dialManyBy(t *testing.T, w *world, f plan, n int) (conns []net.Conn, flows []network.Flow) {
	t.Helper()
	for range n {
		c, err := w.dialBy(f, echoPort, answerTime)
		must(t, err)
		t.Cleanup(func() { c.Close() })
		must(t, say(c, "hello", answerTime))
		must(t, c.SetDeadline(time.Time{}))
		must(t, c.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 2}))
		conns, flows = append(conns, c), append(flows, flowOf(c))
	}
	return conns, flows
}

func flowOf(c net.Conn) network.Flow {
	return network.Flow{
		Own:  netip.MustParseAddrPort(c.RemoteAddr().String()),
		Peer: netip.MustParseAddrPort(c.LocalAddr().String()),
	}
}

// asleepKnowing is asleep, with the connections learned.
func asleepKnowing(t *testing.T, l *network.Link, s *standIn, g network.Gate, flows []network.Flow) {
	t.Helper()
	must(t, l.HoldKeepAlives(t.Context()))
	must(t, l.Disconnect(t.Context()))
	must(t, l.Quiet(t.Context(), 20*time.Millisecond))
	must(t, l.SetGate(t.Context(), g))
	known, err := l.LearnConnections(t.Context(), flows)
	must(t, err)
	if known != len(flows) {
		t.Fatalf("%d of %d connections are known", known, len(flows))
	}
	s.freeze()
}

func wokenKnowing(t *testing.T, l *network.Link, s *standIn) {
	t.Helper()
	woken(t, l, s)
	must(t, l.ReleaseKeepAlives(t.Context()))
}

// awakeAnswering is awake with a stand-in that acknowledges as often as it is asked to, as the sandbox does.
func awakeAnswering(t *testing.T) (*world, *network.Link, *standIn) {
	t.Helper()
	return answering(t, newWorld(t))
}

func answering(t *testing.T, w *world) (*world, *network.Link, *standIn) {
	t.Helper()
	w, l, s := awakeIn(t, w)
	inside(t, s.ns, func() (any, error) {
		return nil, os.WriteFile("/proc/sys/net/ipv4/tcp_invalid_ratelimit", []byte("0"), 0)
	})
	t.Cleanup(func() { // of a test that has failed
		if s.frozen.TryRLock() {
			s.frozen.RUnlock()
			return
		}
		s.thaw()
	})
	return w, l, s
}

func TestKeepAlivesAreAnsweredAsleep(t *testing.T) {
	t.Parallel()
	w, l, s := awakeAnswering(t)
	conns, flows := dialMany(t, w, 20)
	inside(t, w.client, func() (any, error) { return nil, os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte("0"), 0) })
	bare, bareFlows := dialMany(t, w, 5)
	conns, flows = append(conns, bare...), append(flows, bareFlows...)
	heard := listen(t, w)
	misses := watch(t, l)
	for i, g := range []network.Gate{held(echoPort), parked, held(echoPort)} {
		heard.reset()
		asleepKnowing(t, l, s, g, flows)
		eventually(t, "each connection's keep-alive is answered three times", func() bool { return heard.fromPod(3) == len(conns) })
		if n := len(misses); n > 0 {
			t.Fatalf("%s: %d misses by keep-alives", g.Position, n)
		}
		for k, c := range conns { // each of them lives, and wakes
			line := fmt.Sprintf("round %d, connection %d", i, k)
			_, err := c.Write([]byte(line + "\n"))
			must(t, err)
			next(t, misses)
			wokenKnowing(t, l, s)
			must(t, c.SetDeadline(time.Now().Add(answerTime)))
			must(t, hear(c, line))
			must(t, c.SetDeadline(time.Time{}))
			drain(misses)
			if k < len(conns)-1 {
				asleepKnowing(t, l, s, g, flows)
			}
		}
	}
}

// ear hears TCP segments at the client's interface, both ways.
type ear struct {
	mu  sync.Mutex
	out map[netip.AddrPort][]keepalive.Segment // by the client's address, as sent
	in  map[netip.AddrPort][]keepalive.Segment
}

func listen(t *testing.T, w *world) *ear {
	t.Helper()
	f := inside(t, w.client, func() (*os.File, error) {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0x0300) // ETH_P_ALL
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20) // it must miss nothing
		}
		return os.NewFile(uintptr(fd), "ear"), err
	})
	e := &ear{}
	e.reset()
	var done sync.WaitGroup
	done.Go(func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			if s, ok := keepalive.Parse(buf[:n]); ok {
				e.hear(s)
			}
		}
	})
	t.Cleanup(func() { f.Close(); done.Wait() })
	return e
}

func (e *ear) hear(s keepalive.Segment) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if a := s.From.Addr(); a == podAddr || a == movedAddr || a == six.pod {
		e.in[s.To] = append(e.in[s.To], s)
	} else {
		e.out[s.From] = append(e.out[s.From], s)
	}
}

func (e *ear) reset() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.in, e.out = map[netip.AddrPort][]keepalive.Segment{}, map[netip.AddrPort][]keepalive.Segment{}
}

// fromPod counts the clients that have heard at least n segments.
func (e *ear) fromPod(n int) (clients int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, list := range e.in {
		if len(list) >= n {
			clients++
		}
	}
	return clients
}

// probe waits for one of the client's keep-alive probes, known by its answer.
func (e *ear) probe(t *testing.T, client netip.AddrPort) (s keepalive.Segment) {
	t.Helper()
	eventually(t, "the client has asked", func() bool {
		e.mu.Lock()
		defer e.mu.Unlock()
		for _, out := range e.out[client] {
			for _, in := range e.in[client] {
				if s = out; out.Flags == keepalive.ACK && out.Length == 0 && in.Ack == out.Seq+1 {
					return true
				}
			}
		}
		return false
	})
	return s
}

// heardBy are the segments that the pod has sent to a client.
func (e *ear) heardBy(client netip.AddrPort) []keepalive.Segment {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]keepalive.Segment(nil), e.in[client]...)
}

// inject sends a packet from the client.
func inject(t *testing.T, w *world, packet []byte) {
	t.Helper()
	inside(t, w.client, func() (any, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_RAW)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		return nil, unix.Sendto(fd, packet, 0, &unix.SockaddrInet4{Addr: podAddr.As4()})
	})
}

// A client's probe, changed so that it is none, goes to the sandbox, and nobody answers it in its place.
func TestNothingElseIsAnsweredAsleep(t *testing.T) {
	t.Parallel()
	w, l, s := awakeAnswering(t)
	heard := listen(t, w)
	misses := watch(t, l)
	for name, change := range map[string]func(*keepalive.Segment){
		"one byte of data":              func(s *keepalive.Segment) { s.Seq++; s.Length = 1 },
		"window update":                 func(s *keepalive.Segment) { s.Seq++ },
		"duplicate of a byte":           func(s *keepalive.Segment) { s.Seq--; s.Length = 1 },
		"acknowledges what wasn't sent": func(s *keepalive.Segment) { s.Ack++ },
		"old acknowledgement":           func(s *keepalive.Segment) { s.Ack-- },
		"urgent":                        func(s *keepalive.Segment) { s.Flags |= 0x20 },
		"pushes":                        func(s *keepalive.Segment) { s.Flags |= 0x08 },
		"closes":                        func(s *keepalive.Segment) { s.Flags |= 0x01 },
		"without its timestamps":        func(s *keepalive.Segment) { s.Stamped = false },
	} {
		t.Run(name, func(t *testing.T) {
			conns, flows := dialMany(t, w, 1)
			probe := heard.probe(t, flows[0].Peer)
			asleepKnowing(t, l, s, parked, flows)
			drain(misses)
			heard.reset()
			inject(t, w, probe.Packet())
			eventually(t, "it is answered as it is", func() bool { return heard.fromPod(1) == 1 })
			if n := len(misses); n > 0 {
				t.Fatalf("%d misses", n)
			}
			changed := probe
			change(&changed)
			inject(t, w, changed.Packet())
			next(t, misses)
			for _, a := range heard.heardBy(flows[0].Peer) {
				if a.Ack != probe.Seq+1 {
					t.Errorf("answered: %+v", a)
				}
			}
			must(t, conns[0].(*net.TCPConn).SetLinger(0))
			must(t, conns[0].Close())
			wokenKnowing(t, l, s)
		})
	}
}

// In the time in which nobody knows yet what to answer, all that may be a question waits, and is then dealt with.
func TestSuspectsAreKeptWhileFallingAsleep(t *testing.T) {
	t.Parallel()
	w, l, s := awakeAnswering(t)
	heard := listen(t, w)
	conns, flows := dialMany(t, w, 2)
	misses := watch(t, l)
	probe := heard.probe(t, flows[0].Peer)
	settled(t, l)

	must(t, l.HoldKeepAlives(t.Context()))
	must(t, l.Disconnect(t.Context()))
	heard.reset()
	inject(t, w, probe.Packet())
	eventually(t, "a probe of the other client, too", func() bool { return heard.said(flows[1].Peer) })
	if n := len(misses); n > 0 {
		t.Fatalf("%d misses", n)
	}
	if n := heard.fromPod(1); n > 0 {
		t.Fatalf("%d were answered before anything was known", n)
	}
	must(t, l.SetGate(t.Context(), parked))
	_, err := l.LearnConnections(t.Context(), flows)
	must(t, err)
	eventually(t, "both are answered", func() bool { return heard.fromPod(1) == 2 })
	if n := len(misses); n > 0 {
		t.Fatalf("%d misses", n)
	}
	s.freeze()
	wokenKnowing(t, l, s)

	// a window update is not taken for a probe
	must(t, l.HoldKeepAlives(t.Context()))
	must(t, l.Disconnect(t.Context()))
	update := probe
	update.Seq++
	inject(t, w, update.Packet())
	must(t, l.Quiet(t.Context(), 20*time.Millisecond))
	if n := len(misses); n > 0 {
		t.Fatalf("%d misses", n)
	}
	must(t, l.SetGate(t.Context(), parked))
	_, err = l.LearnConnections(t.Context(), flows)
	must(t, err)
	next(t, misses)

	// nor is anything lost when the sandbox stays awake after all
	s.freeze()
	wokenKnowing(t, l, s)
	for _, c := range conns {
		must(t, c.(*net.TCPConn).SetKeepAlive(false)) // what is answered now is what was kept
	}
	drain(misses)
	must(t, l.HoldKeepAlives(t.Context()))
	must(t, l.Disconnect(t.Context()))
	heard.reset()
	inject(t, w, probe.Packet())
	must(t, l.Quiet(t.Context(), 20*time.Millisecond))
	must(t, l.Connect(t.Context()))
	must(t, l.ReleaseKeepAlives(t.Context()))
	eventually(t, "the sandbox answers itself", func() bool { return heard.fromPod(1) > 0 })
}

func (e *ear) said(client netip.AddrPort) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.out[client]) > 0
}

func TestKeepingLeavesNothing(t *testing.T) {
	w, l, s := awakeAnswering(t)
	_, flows := dialMany(t, w, 1)
	before := chains(t, w.pod)
	asleepKnowing(t, l, s, parked, flows)
	if same := chains(t, w.pod) == before; same {
		t.Fatal("nothing was put in place")
	}
	must(t, l.Close()) // its process has gone
	again := w.open(t)
	s.thaw()
	must(t, again.SetGate(t.Context(), opened))
	must(t, again.Connect(t.Context()))
	for range 2 {
		must(t, again.ReleaseKeepAlives(t.Context()))
	}
	if after := chains(t, w.pod); after != before {
		t.Fatalf("before: %s\nafter: %s", before, after)
	}
	asleepKnowing(t, again, s, parked, flows)
	s.thaw()
	must(t, again.Remove(t.Context()))
	if after := chains(t, w.pod); after != "" {
		t.Fatalf("left: %s", after)
	}
}

func chains(t *testing.T, ns string) string {
	t.Helper()
	c := nft(t, ns)
	list, err := c.ListChains()
	must(t, err)
	var names []string
	for _, ch := range list {
		names = append(names, ch.Table.Name+"/"+ch.Name)
		sets, err := c.GetSets(ch.Table)
		must(t, err)
		names = append(names, fmt.Sprint(len(sets)))
	}
	return strings.Join(names, " ")
}

func TestManyConnectionsAreLearned(t *testing.T) {
	t.Parallel()
	w, l, s := awakeAnswering(t)
	conns, flows := dialMany(t, w, 2100) // more than go into one message to the kernel
	asleepKnowing(t, l, s, parked, flows)
	misses := watch(t, l)
	heard := listen(t, w)
	defer func() {
		t.Logf("%d of %d have heard an answer, %d two; %d misses", heard.fromPod(1), len(conns), heard.fromPod(2), len(misses))
	}()
	eventually(t, "each is answered", func() bool { return heard.fromPod(2) == len(conns) })
	if n := len(misses); n > 0 {
		t.Fatalf("%d misses", n)
	}
	wokenKnowing(t, l, s)
	for _, c := range conns {
		must(t, say(c, "still there", answerTime))
	}
}
