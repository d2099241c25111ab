package network

import (
	"errors"
	"fmt"
	"net"
	"testing"

	"golang.org/x/sync/errgroup"
)

// Connections on which nothing is said live through ten sleeps, each ended by one of them, and are all answered then. Half of
// them were held at first.
func TestIdleConnectionsOutliveTenSleeps(t *testing.T) {
	const sleeps = 10
	s := start(t, true, nil)
	conns := make([]net.Conn, atSize(100, 1000))
	t.Logf("%d connections, %d sleeps", len(conns), sleeps)
	for i := range conns {
		if i == len(conns)/2 {
			s.sleep()
		}
		conns[i] = s.dial(echoPort)
		s.must(exchange(conns[i], fmt.Sprintf("connection %d", i)))
	}
	for i := range sleeps {
		before := s.sleep()
		s.must(exchange(conns[i*(len(conns)-1)/(sleeps-1)], fmt.Sprintf("sleep %d ends", i)))
		s.woken(before, "packet")
	}
	var all errgroup.Group
	all.SetLimit(32)
	errs := make([]error, len(conns))
	for i, c := range conns {
		all.Go(func() error {
			errs[i] = exchange(c, fmt.Sprintf("after all, connection %d", i))
			return nil
		})
	}
	_ = all.Wait()
	s.must(errors.Join(errs...))
}
