package network

import (
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// streamSocket makes a TCP socket in the thread's namespace, for the poller.
func streamSocket(a netip.Addr) (*os.File, error) {
	family := unix.AF_INET6
	if a.Is4() {
		family = unix.AF_INET
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.IPPROTO_TCP)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	return os.NewFile(uintptr(fd), "tcp"), nil
}

type socketOption struct {
	name              string
	level, opt, value int
}

var reuseOption = socketOption{"reuse address", unix.SOL_SOCKET, unix.SO_REUSEADDR, 1}

func setOptions(fd int, options ...socketOption) error {
	for _, o := range options {
		if err := unix.SetsockoptInt(fd, o.level, o.opt, o.value); err != nil {
			return fmt.Errorf("socket option %s: %w", o.name, err)
		}
	}
	return nil
}

// control runs fn on a descriptor that the poller knows.
func control(raw syscall.RawConn, fn func(fd int) error) (err error) {
	if outer := raw.Control(func(fd uintptr) { err = fn(int(fd)) }); outer != nil {
		return outer
	}
	return err
}

// transparentOption lets a socket have addresses that are not its namespace's.
func transparentOption(a netip.Addr) socketOption {
	if a.Is4() {
		return socketOption{"transparent", unix.SOL_IP, unix.IP_TRANSPARENT, 1}
	}
	return socketOption{"transparent", unix.SOL_IPV6, unix.IPV6_TRANSPARENT, 1}
}

func sockaddr(ap netip.AddrPort) unix.Sockaddr {
	if ap.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(ap.Port()), Addr: ap.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(ap.Port()), Addr: ap.Addr().As16()}
}
