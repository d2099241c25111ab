package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"
)

// Datagrams to a sleeper wake it, and none of them is lost: what comes until it is awake waits in the kernel, from a client
// elsewhere, from the node and from another pod. (That published ports do the same is shown by package hooks.)
func TestDatagramsWaitForTheWake(t *testing.T) {
	const size = 1000
	number := atSize(50, 200)
	t.Logf("%d datagrams of %d bytes from each place", number, size)
	s := start(t, true, nil)
	other, err := s.world.NewPod(s.ctx(), "other")
	s.must(err)
	t.Cleanup(func() {
		if err := s.world.RemovePod(context.Background(), other); err != nil {
			t.Error(err)
		}
	})
	for name, dial := range map[string]func(context.Context, string, string) (net.Conn, error){
		"client": s.world.Dial, "node": s.world.DialNode,
		"another pod": func(ctx context.Context, network, address string) (net.Conn, error) {
			return s.world.DialPod(ctx, other.Path, network, address)
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := *s
			s.t = t
			before := s.sleep()
			c, err := dial(s.ctx(), "udp", s.address(udpPort))
			s.must(err)
			defer c.Close()
			for i := range number {
				_, err := fmt.Fprintf(c, "%0*d", size, i)
				s.must(err)
			}
			s.must(allEchoed(c, number, size))
			s.woken(before, "packet")
		})
	}
}

// allEchoed wants each datagram back once, in whatever order.
func allEchoed(c net.Conn, number, size int) error {
	missing := map[string]bool{}
	for i := range number {
		missing[fmt.Sprintf("%0*d", size, i)] = true
	}
	if err := c.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	buf := make([]byte, 2*size)
	for len(missing) > 0 {
		n, err := c.Read(buf)
		if err != nil {
			return errors.Join(fmt.Errorf("%d of %d datagrams were not echoed", len(missing), number), err)
		}
		if !missing[string(buf[:n])] {
			return fmt.Errorf("an echo of %d bytes that was not wanted, or twice", n)
		}
		delete(missing, string(buf[:n]))
	}
	return nil
}
