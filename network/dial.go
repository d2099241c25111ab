package network

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Dial connects to the sandbox behind the pod's namespace with the client's
// address as the source (the port is another one), so the workload sees who
// calls. pod stays the caller's. The gate must be open; while the neighbour is
// missing the connection waits in the kernel. A client of another family than
// target's reaches the pod by its first address of that family.
func Dial(ctx context.Context, pod *os.File, client, target netip.AddrPort) (*net.TCPConn, error) {
	to := netip.AddrPortFrom(target.Addr().Unmap(), target.Port())
	var err error
	for range portTries {
		var c *net.TCPConn
		if c, err = dial(ctx, pod, client.Addr().Unmap(), to); err == nil {
			return c, nil
		}
		if !errors.Is(err, unix.EADDRNOTAVAIL) { // that one is connected there already
			break
		}
	}
	return nil, fmt.Errorf("dial %s for %s: %w", target, client, err)
}

const portTries = 64

func dial(ctx context.Context, pod *os.File, client netip.Addr, target netip.AddrPort) (*net.TCPConn, error) {
	var f *os.File
	err := enter(pod, func() (err error) {
		if client.Is4() != target.Addr().Is4() {
			if target, err = sameFamily(client, target); err != nil {
				return err
			}
		}
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
	if err := control(raw, func(fd int) error { return startConnect(fd, client, target) }); err != nil {
		return nil, err
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

// sameFamily runs inside P. It finds the address of the client's family beside the target's.
func sameFamily(client netip.Addr, target netip.AddrPort) (netip.AddrPort, error) {
	list, err := netlink.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return target, fmt.Errorf("addresses of P: %w", err)
	}
	i := slices.IndexFunc(list, func(a netlink.Addr) bool { return toAddr(a.IP) == target.Addr() })
	for _, a := range list {
		if i >= 0 && a.LinkIndex == list[i].LinkIndex && usable(a) && familyOf(toAddr(a.IP)) == familyOf(client) {
			return netip.AddrPortFrom(toAddr(a.IP), target.Port()), nil
		}
	}
	return target, fmt.Errorf("the pod has no address of %s", familyOf(client).name)
}

func startConnect(fd int, client netip.Addr, target netip.AddrPort) error {
	err := setOptions(fd, transparentOption(client), reuseOption,
		socketOption{"mark", unix.SOL_SOCKET, unix.SO_MARK, int(MarkSandbox)})
	if err != nil {
		return err
	}
	if err := bindProxyPort(fd, client); err != nil {
		return fmt.Errorf("bind to the client's address: %w", err)
	}
	if err := unix.Connect(fd, sockaddr(target)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return fmt.Errorf("connect: %w", err)
	}
	return nil
}

// bindProxyPort picks a port itself: the kernel clamps IP_LOCAL_PORT_RANGE to
// the namespace's range, which is the one that clients use.
func bindProxyPort(fd int, client netip.Addr) (err error) {
	for range portTries {
		port := ProxyPortLow + rand.IntN(ProxyPortHigh-ProxyPortLow+1)
		err = unix.Bind(fd, sockaddr(netip.AddrPortFrom(client, uint16(port))))
		if !errors.Is(err, unix.EADDRINUSE) {
			return err
		}
	}
	return err
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
