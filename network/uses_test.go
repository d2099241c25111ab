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
	both(t, func(t *testing.T, w *world, l *network.Link, s *standIn, _ bool) {
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
		for protocol, network4 := range map[string]string{"tcp": "tcp4", "udp": "udp4"} {
			c := inside(t, w.client, func() (net.Conn, error) {
				return net.DialTimeout(network4, netip.AddrPortFrom(podAddr, echoPort).String(), 10*time.Second)
			})
			defer c.Close()
			want := network.Use{Protocol: protocol, Peer: netip.MustParseAddrPort(c.LocalAddr().String()), Own: netip.AddrPortFrom(podAddr, echoPort)}
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
