package network_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// heardBy gathers what young connections say.
type heardBy struct {
	mu  sync.Mutex
	all []network.Said
}

func listenToYoung(t *testing.T, l *network.Link) *heardBy {
	t.Helper()
	h := &heardBy{}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- l.Saids(ctx, func(s network.Said) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.all = append(h.all, s)
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return h
}

// of is what a client has said, and a segment that says so.
func (h *heardBy) of(client net.Addr) (text string, last network.Said) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.all {
		if s.Peer.String() == client.String() {
			text, last = text+string(s.Data), s
		}
	}
	return text, last
}

// eachWay runs test with a client whose connections may be probes, in each family and on both ways.
func eachWay(t *testing.T, youth time.Duration, test func(t *testing.T, w *world, l *network.Link, p plan)) {
	t.Helper()
	for _, p := range []plan{four, six} {
		for way, slow := range map[string]bool{"past the stack": false, "through it": true} {
			t.Run("IPv"+p.suffix+" "+way, func(t *testing.T) {
				w := newWorldOf(t, p)
				w.slow, w.youth = slow, youth
				w.probes = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.PrefixFrom(p.client, p.client.BitLen())}
				_, l, s := awakeIn(t, w)
				w.standIn = s
				if why := l.FastPath(); (why != "") != slow {
					t.Fatalf("the fast path: %q", why)
				}
				test(t, w, l, p)
			})
		}
	}
}

func (w *world) talk(t *testing.T, p plan) net.Conn {
	t.Helper()
	c := inside(t, w.client, func() (net.Conn, error) { return net.DialTimeout(p.tcp(), p.at(echoPort), 10*time.Second) })
	t.Cleanup(func() { c.Close() })
	return c
}

// A young connection from where probes come is no use, and what it says is told; one that somebody finds to be used is use from then on.
func TestYoungConnectionsAreNoUseByThemselves(t *testing.T) {
	t.Parallel()
	eachWay(t, time.Hour, func(t *testing.T, w *world, l *network.Link, p plan) {
		heard := listenToYoung(t, l)
		before := settled(t, l)
		c := w.talk(t, p)
		for range 5 {
			must(t, say(c, "is it well?", answerTime))
		}
		if n := settled(t, l).Packets - before.Packets; n != 0 {
			t.Fatalf("%d packets count", n)
		}
		want := strings.Repeat("is it well?\n", 5)
		eventually(t, "told what it says", func() bool { text, _ := heard.of(c.LocalAddr()); return text == want })
		other := w.talk(t, p)
		_, last := heard.of(c.LocalAddr())
		must(t, l.Used(t.Context(), last))
		used := settled(t, l)
		if n := used.Packets - before.Packets; n != 1 {
			t.Errorf("what was said counts as %d packets", n)
		}
		must(t, say(c, "more of it", answerTime))
		if n := settled(t, l).Packets - used.Packets; n != 2 {
			t.Errorf("then %d packets count", n)
		}
		before = settled(t, l)
		must(t, say(other, "is it well?", answerTime))
		must(t, other.Close())
		if n := settled(t, l).Packets - before.Packets; n != 0 {
			t.Errorf("of another one, %d packets count", n)
		}
		must(t, l.Used(t.Context(), last)) // it is no more, or not any more
	})
}

// One that lives longer is use.
func TestOldConnectionsAreUse(t *testing.T) {
	eachWay(t, 50*time.Millisecond, func(t *testing.T, w *world, l *network.Link, p plan) {
		c := w.talk(t, p)
		eventually(t, "what is said counts", func() bool {
			before := settled(t, l)
			must(t, say(c, "still here", answerTime))
			return settled(t, l).Packets-before.Packets == 2
		})
	})
}

// An answer that the closing gate cuts counts, whoever asked: it is lost.
func TestCutAnswersToProbesCount(t *testing.T) {
	eachWay(t, time.Hour, func(t *testing.T, w *world, l *network.Link, p plan) {
		c := w.talk(t, p)
		must(t, say(c, "is it well?", answerTime))
		before := settled(t, l)
		w.standIn.freeze()
		_, err := c.Write([]byte("is it well?\n"))
		must(t, errors.Join(err, l.SetGate(t.Context(), network.Gate{Position: network.GateParked})))
		w.standIn.thaw()
		eventually(t, "the answer counts", func() bool {
			n, err := l.Counters(t.Context())
			must(t, err)
			return n.Packets > before.Packets
		})
	})
}
