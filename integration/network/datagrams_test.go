package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Datagrams to a sleeper wake it, and none of them is lost: what comes until it is awake waits in the kernel, from a client
// elsewhere, from the node and from another pod: a MiB of them, where the workload's own buffer takes as much. (That published
// ports do the same is shown by package hooks.)
func TestDatagramsWaitForTheWake(t *testing.T) {
	const size = 1000
	const number = 1<<20/size + 1
	t.Logf("%d datagrams of %d bytes from each place", number, size)
	s := run(t, true, nil, echoPort, harness.Container{
		Image: "testserver", Args: []string{"/usr/bin/testserver", "-udp-buffer", fmt.Sprint(4 << 20)},
	})
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
			s.must(hearAll(c.(*net.UDPConn)))
			for i := range number {
				_, err := fmt.Fprintf(c, "%0*d", size, i)
				s.must(err)
			}
			s.must(allEchoed(c, number, size))
			s.woken(before, "packet")
		})
	}
}

// hearAll gives a socket room for all that may come at once.
func hearAll(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var failed error
	err = raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
	return errors.Join(err, failed)
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
