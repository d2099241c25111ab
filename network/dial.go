package network

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Dial connects to the sandbox behind the pod's namespace with the client's
// address as the source (the port is another one), so the workload sees who
// calls. pod stays the caller's. The gate must be open; while the neighbour is
// missing the connection waits in the kernel.
func Dial(ctx context.Context, pod *os.File, client, target netip.AddrPort) (*net.TCPConn, error) {
	c, err := dial(ctx, pod, client.Addr().Unmap(), netip.AddrPortFrom(target.Addr().Unmap(), target.Port()))
	if err != nil {
		return nil, fmt.Errorf("dial %s for %s: %w", target, client, err)
	}
	return c, nil
}

func dial(ctx context.Context, pod *os.File, client netip.Addr, target netip.AddrPort) (*net.TCPConn, error) {
	if client.Is4() != target.Addr().Is4() {
		return nil, errors.New("addresses of two families")
	}
	var f *os.File
	err := enter(pod, func() (err error) {
		f, err = streamSocket(target.Addr())
		return err
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var failed error
	if err := raw.Control(func(fd uintptr) { failed = startConnect(int(fd), client, target) }); err != nil {
		return nil, err
	}
	if failed != nil {
		return nil, failed
	}
	if err := awaitConnect(ctx, f, raw); err != nil {
		return nil, err
	}
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("not a TCP connection: %T", c)
	}
	return tcp, nil
}

func startConnect(fd int, client netip.Addr, target netip.AddrPort) error {
	for _, o := range []struct {
		name              string
		level, opt, value int
	}{
		transparentOption(client),
		{"source port at connect", unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1},
		{"source port range", unix.SOL_IP, unix.IP_LOCAL_PORT_RANGE, ProxyPortHigh<<16 | ProxyPortLow},
		{"mark", unix.SOL_SOCKET, unix.SO_MARK, int(MarkSandbox)},
	} {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return fmt.Errorf("socket option %s: %w", o.name, err)
		}
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(client, 0))); err != nil {
		return fmt.Errorf("bind to the client's address: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(target)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// awaitConnect waits in the runtime's poller: no thread is kept.
func awaitConnect(ctx context.Context, f *os.File, raw syscall.RawConn) error {
	stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	var failed error
	err := raw.Write(func(fd uintptr) bool {
		code, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = syscall.Errno(code)
		}
		if err == nil {
			if _, err := unix.Getpeername(int(fd)); errors.Is(err, unix.ENOTCONN) {
				return false
			}
		}
		failed = err
		return true
	})
	if cause := context.Cause(ctx); cause != nil && (err != nil || failed != nil) {
		return cause
	}
	if failed != nil {
		return fmt.Errorf("connect: %w", failed)
	}
	return err
}
