package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Backlog bounds what waits at a listener until somebody accepts. The zero value
// of each field is the kernel's own bound.
type Backlog struct {
	// Connections that wait. Beyond them the kernel leaves SYNs unanswered, and a
	// handshake that is under way in that moment is reset.
	Connections int
	// Buffer is how many bytes each of them may send ahead, about. One that was
	// accepted has no such bound.
	Buffer int
}

// Listen makes a listener in P that gets connections to the pod's addresses, of both
// families where it has both, while the gate is held. It is bound to the wildcard: the gate tells its packets from
// the sandbox's own by that. The descriptor is in non-blocking mode, and the
// caller's.
func (l *Link) Listen(ctx context.Context, port uint16, b Backlog) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	at := netip.AddrPortFrom(netip.IPv4Unspecified(), port)
	if l.attachment.carries(ip6) {
		at = netip.AddrPortFrom(netip.IPv6Unspecified(), port) // for both families
	}
	var f *os.File
	err := enter(l.pod.ns, func() (err error) {
		f, err = streamSocket(at.Addr())
		return err
	})
	if err == nil {
		err = listen(f, at, b)
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, fmt.Errorf("listen on port %d of %s: %w", at.Port(), l.pod.ns.Name(), err)
	}
	return f, nil
}

func listen(f *os.File, at netip.AddrPort, b Backlog) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error { return listenOn(fd, at, b) })
}

func listenOn(fd int, at netip.AddrPort, b Backlog) error {
	options := []socketOption{reuseOption, transparentOption(at.Addr())}
	if at.Addr().Is6() {
		options = append(options, socketOption{"IPv6 only", unix.SOL_IPV6, unix.IPV6_V6ONLY, 0}) // whatever is P's default
	}
	if err := setOptions(fd, options...); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(at)); err != nil {
		return os.NewSyscallError("bind", err)
	}
	if err := boundBuffer(fd, b.Buffer); err != nil {
		return err
	}
	backlog := b.Connections
	if backlog <= 0 || backlog > wantBacklog {
		backlog = wantBacklog
	}
	return os.NewSyscallError("listen", unix.Listen(fd, backlog))
}

// boundBuffer sets the receive buffer with which a listener's connections begin.
// The lock that comes with it is taken off again: it would keep their windows
// small for good. Kernels before 5.14 can't do that, and are left as they are.
func boundBuffer(fd, bytes int) error {
	if bytes <= 0 {
		return nil
	}
	if _, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BUF_LOCK); errors.Is(err, unix.ENOPROTOOPT) {
		return nil
	}
	return setOptions(fd, socketOption{"receive buffer", unix.SOL_SOCKET, unix.SO_RCVBUF, bytes},
		socketOption{"buffer lock", unix.SOL_SOCKET, unix.SO_BUF_LOCK, 0})
}
