package network

import (
	"context"
	"fmt"
	"net/netip"
	"os"

	"golang.org/x/sys/unix"
)

// Listen makes a listener in P that gets connections to the pod's address while
// the gate is held. It is bound to the wildcard: the gate tells its packets from
// the sandbox's own by that. Its backlog is as deep as P allows; beyond it
// clients are reset. The descriptor is in non-blocking mode, and the caller's.
func (l *Link) Listen(ctx context.Context, port uint16) (*os.File, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var f *os.File
	err := enter(l.pod.ns, func() (err error) {
		f, err = streamSocket(netip.IPv4Unspecified())
		return err
	})
	if err == nil {
		err = listen(f, port)
	}
	if err != nil {
		if f != nil {
			f.Close()
		}
		return nil, fmt.Errorf("listen on port %d of %s: %w", port, l.pod.ns.Name(), err)
	}
	return f, nil
}

func listen(f *os.File, port uint16) error {
	raw, err := f.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, func(fd int) error { return listenOn(fd, port) })
}

func listenOn(fd int, port uint16) error {
	wildcard := netip.IPv4Unspecified()
	if err := setOptions(fd, reuseOption, transparentOption(wildcard)); err != nil {
		return err
	}
	if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(wildcard, port))); err != nil {
		return os.NewSyscallError("bind", err)
	}
	return os.NewSyscallError("listen", unix.Listen(fd, wantBacklog))
}
