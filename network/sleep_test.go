package network_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// asleep takes the sandbox off the network, in the package's order.
func asleep(t *testing.T, l *network.Link, s *standIn, g network.Gate) {
	t.Helper()
	must(t, l.Disconnect(t.Context()))
	must(t, l.Quiet(t.Context(), 20*time.Millisecond))
	must(t, l.SetGate(t.Context(), g))
	s.freeze()
}

func woken(t *testing.T, l *network.Link, s *standIn) {
	t.Helper()
	s.thaw()
	must(t, l.SetGate(t.Context(), opened))
	must(t, l.Connect(t.Context()))
	must(t, l.Quicken(t.Context()))
}

// watch collects misses until the test ends.
func watch(t *testing.T, l *network.Link) <-chan network.Miss {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	misses, done := make(chan network.Miss, 1000), make(chan error, 1)
	go func() { done <- l.Misses(ctx, func(m network.Miss) { misses <- m }) }()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	return misses
}

func next(t *testing.T, misses <-chan network.Miss) network.Miss {
	t.Helper()
	select {
	case m := <-misses:
		if m.Address != podAddr {
			t.Fatalf("a miss of %s", m.Address)
		}
		return m
	case <-time.After(answerTime):
		t.Fatal("no miss was reported")
	}
	return network.Miss{}
}

func TestEstablishedConnectionSurvives(t *testing.T) {
	w, l, s := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	misses := watch(t, l)
	for i, g := range []network.Gate{held(echoPort), parked, held(echoPort), parked} {
		must(t, say(c, "awake", answerTime))
		asleep(t, l, s, g)
		line := fmt.Sprintf("sent asleep %d", i)
		must(t, c.SetDeadline(time.Now().Add(answerTime)))
		_, err := c.Write([]byte(line + "\n"))
		must(t, err)
		next(t, misses)
		start := time.Now()
		woken(t, l, s)
		must(t, hear(c, line))
		t.Logf("%s: answered %v after the wake began", g.Position, time.Since(start))
		drain(misses)
	}
}

func drain(misses <-chan network.Miss) {
	for len(misses) > 0 {
		<-misses
	}
}

func TestParkedGateKeepsSYN(t *testing.T) {
	w, l, s := awake(t)
	asleep(t, l, s, parked)
	misses := watch(t, l)
	type result struct {
		c   net.Conn
		err error
	}
	done := make(chan result, 1)
	go func() {
		c, err := w.dial(echoPort, answerTime)
		done <- result{c, err}
	}()
	next(t, misses)
	noMoreSYNs(t, w.client) // so that it is the kept one that arrives
	woken(t, l, s)
	r := <-done
	must(t, r.err)
	defer r.c.Close()
	must(t, say(r.c, "hello", answerTime))
}

// noMoreSYNs lets none that the client sends again get out.
func noMoreSYNs(t *testing.T, client string) {
	t.Helper()
	c := nft(t, client)
	table := c.AddTable(&nftables.Table{Name: "again", Family: nftables.TableFamilyIPv4})
	policy := nftables.ChainPolicyAccept
	chain := c.AddChain(&nftables.Chain{
		Name: "out", Table: table, Type: nftables.ChainTypeFilter, Hooknum: nftables.ChainHookOutput,
		Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	const flags, syn = 13, 2 // of TCP's header
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{unix.IPPROTO_TCP}},
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: []byte{syn}},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	must(t, c.Flush())
}

// seldomAgain, in P, has the kernel repeat that a packet waits after longer than any test takes.
func seldomAgain() error {
	return os.WriteFile("/proc/sys/net/ipv4/neigh/hib0/retrans_time_ms", []byte("600000"), 0)
}

func TestMissIsReportedAtOnce(t *testing.T) {
	w, l, s := awake(t)
	inside(t, w.pod, func() (any, error) { return nil, seldomAgain() })
	misses := watch(t, l)
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	var took []time.Duration
	for range 20 {
		must(t, say(u, "learns the way", answerTime))
		asleep(t, l, s, parked)
		drain(misses)
		start := time.Now()
		_, err := u.Write([]byte("x\n"))
		must(t, err)
		var m network.Miss
		select {
		case m = <-misses:
		case <-time.After(answerTime):
		}
		woken(t, l, s) // a sandbox that stays frozen would hold up the test's end
		if m.Address != podAddr {
			t.Fatal("it is told with the repetition only, or of another address")
		}
		took = append(took, m.Time.Sub(start))
		must(t, hear(u, "x"))
	}
	slices.Sort(took)
	t.Logf("from send to callback: p50 %v, max %v", took[len(took)/2], took[len(took)-1])
}

func TestMissBeforeTheWatchIsFound(t *testing.T) {
	w, l, s := awake(t)
	inside(t, w.pod, func() (any, error) { return nil, seldomAgain() })
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	must(t, say(u, "learns the way", answerTime))
	asleep(t, l, s, parked)
	defer s.thaw()
	_, err := u.Write([]byte("x\n"))
	must(t, err)
	next(t, watch(t, l))
}

// A megabyte sent to a sleeper arrives whole.
func TestKeptDataArrives(t *testing.T) {
	w, l, s := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
	asleep(t, l, s, parked)
	text := strings.Repeat("0123456789abcde", 1<<16)
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write([]byte(text + "\n"))
		sent <- err
	}()
	next(t, watch(t, l))
	woken(t, l, s)
	must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
	must(t, hear(c, text))
	must(t, <-sent)
}

// What a sandbox that is being saved still says does not get out.
func TestCutSilencesTheSandbox(t *testing.T) {
	t.Parallel()
	w, l, s := awake(t)
	c, err := w.dial(echoPort, answerTime)
	must(t, err)
	defer c.Close()
	must(t, say(c, "hello", answerTime))
	must(t, l.SetGate(t.Context(), parked)) // still connected: it hears, and can't answer
	_, err = c.Write([]byte("never answered\n"))
	must(t, err)
	must(t, c.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if n, err := c.Read(make([]byte, 10)); n > 0 || err == nil {
		t.Fatal("an answer got out")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	stop := chatter(t, s)
	if err := l.Quiet(ctx, time.Second); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("quiet beside chatter: %v", err)
	}
	stop()
	must(t, l.Quiet(t.Context(), time.Millisecond))
}

// chatter sends from the sandbox each millisecond.
func chatter(t *testing.T, s *standIn) (stop func()) {
	u := inside(t, s.ns, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.3:9") })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for tick := time.NewTicker(time.Millisecond); ; {
			select {
			case <-ctx.Done():
				tick.Stop()
				return
			case <-tick.C:
				u.Write([]byte("chatter"))
			}
		}
	}()
	return func() { cancel(); <-done; u.Close() }
}

// The peers of a sleeper must not be told that it can't be reached.
func TestHostUnreachableStaysInside(t *testing.T) {
	w, l, s := awake(t)
	inside(t, w.pod, func() (any, error) { return nil, shortSolicit() })
	u := inside(t, w.client, func() (net.Conn, error) { return net.Dial("udp4", "10.99.0.2:7000") })
	defer u.Close()
	must(t, say(u, "hello", answerTime))
	asleep(t, l, s, parked)
	defer s.thaw()
	_, err := u.Write([]byte("lost\n"))
	must(t, err)
	h := handle(t, w.pod)
	index := get(t, h, "hib0").Attrs().Index
	eventually(t, "the neighbour has failed", func() bool { return neighbourFailed(t, h, index) })
	must(t, u.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	if _, err := u.Read(make([]byte, 10)); refused(err) || strings.Contains(fmt.Sprint(err), "host") {
		t.Fatalf("the peer was told: %v", err)
	}
}
