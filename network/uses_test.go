package network_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/network"
)

// Whoever asks is told whose packets are use, whichever way they take.
func TestUseIsTold(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, p plan, _ bool) {
		var mu sync.Mutex
		told := map[network.Use]bool{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- l.Uses(ctx, func(u network.Use) {
				mu.Lock()
				defer mu.Unlock()
				u.Outward = false
				told[u] = true
			})
		}()
		for protocol, how := range map[string]string{"tcp": p.tcp(), "udp": p.udp()} {
			c := inside(t, w.client, func() (net.Conn, error) {
				return net.DialTimeout(how, p.at(echoPort), 10*time.Second)
			})
			defer c.Close()
			want := network.Use{Protocol: protocol, Peer: netip.MustParseAddrPort(c.LocalAddr().String()), Own: netip.AddrPortFrom(p.pod, echoPort)}
			eventually(t, "told of "+want.String(), func() bool {
				must(t, say(c, "whose is it?", answerTime))
				mu.Lock()
				defer mu.Unlock()
				return told[want]
			})
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
