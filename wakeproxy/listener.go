package wakeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// errEmpty says that the backlog held no connection any more.
var errEmpty = errors.New("nothing to accept")

// aLongTimeAgo is a deadline that has passed, for interrupting a wait.
var aLongTimeAgo = time.Unix(1, 0)

// listener is a duplicate of a listening socket, registered with the runtime's
// poller. Its close leaves the socket itself, and its backlog, to the others
// that have it. (net.TCPListener can't be used: it can't wait without
// accepting.)
type listener struct {
	port uint16
	file *os.File
	raw  syscall.RawConn
}

// newListener duplicates ln, which stays the caller's. The socket becomes
// non-blocking for all who share it.
func newListener(ln *os.File, port uint16) (*listener, error) {
	fd, err := duplicate(ln)
	if err != nil {
		return nil, fmt.Errorf("listener of port %d: %w", port, err)
	}
	file := os.NewFile(uintptr(fd), "listener")
	raw, err := file.SyscallConn()
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("listener of port %d: %w", port, err)
	}
	return &listener{port: port, file: file, raw: raw}, nil
}

// duplicate returns a close-on-exec, non-blocking copy of a listening socket.
func duplicate(ln *os.File) (int, error) {
	raw, err := ln.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var failed error
	err = raw.Control(func(orig uintptr) {
		listening, err := unix.GetsockoptInt(int(orig), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
		if err != nil || listening == 0 {
			failed = errors.Join(ErrNotListening, err)
			return
		}
		fd, failed = unix.FcntlInt(orig, unix.F_DUPFD_CLOEXEC, 3)
	})
	if err = errors.Join(err, failed); err != nil {
		return -1, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return -1, os.NewSyscallError("fcntl", err)
	}
	return fd, nil
}

// wait returns when a connection waits in the backlog, without taking it.
func (l *listener) wait(ctx context.Context) error {
	defer l.interruptBy(ctx)()
	var failed error
	err := l.raw.Read(func(fd uintptr) bool {
		var ready bool
		ready, failed = readable(fd)
		return ready || failed != nil
	})
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err = errors.Join(err, failed); err != nil {
		return fmt.Errorf("wait for connections to port %d: %w", l.port, err)
	}
	return nil
}

// readable reports whether a connection waits right now. It fails when the
// socket no longer listens.
func readable(fd uintptr) (bool, error) {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	for {
		_, err := unix.Poll(fds, 0)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return false, os.NewSyscallError("poll", err)
		case fds[0].Revents&(unix.POLLERR|unix.POLLHUP|unix.POLLNVAL) != 0:
			return false, ErrNotListening
		}
		return fds[0].Revents&unix.POLLIN != 0, nil
	}
}

// accept takes one connection from the backlog, or returns errEmpty. The
// descriptor is non-blocking and closed on exec.
func (l *listener) accept() (fd int, client netip.AddrPort, err error) {
	fd = -1
	var sa unix.Sockaddr
	cerr := l.raw.Control(func(ln uintptr) {
		fd, sa, err = unix.Accept4(int(ln), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
	})
	switch {
	case cerr != nil:
		return -1, client, fmt.Errorf("accept on port %d: %w", l.port, cerr)
	case err == unix.EAGAIN:
		return -1, client, errEmpty
	case err == unix.EINVAL:
		return -1, client, fmt.Errorf("accept on port %d: %w", l.port, ErrNotListening)
	case err != nil:
		return -1, client, fmt.Errorf("accept on port %d: %w", l.port, os.NewSyscallError("accept4", err))
	}
	return fd, addrPort(sa), nil
}

// meant is the port of the workload that an accepted connection means: the
// listener's, or the one that it was made to, where the listener has all.
func (l *listener) meant(fd int) uint16 {
	if l.port != 0 {
		return l.port
	}
	sa, err := unix.Getsockname(fd)
	if err != nil { // it is gone already, and refused by the dialer
		return 0
	}
	return addrPort(sa).Port()
}

// waiting returns how many complete connections the backlog holds.
func (l *listener) waiting() int {
	n := 0
	_ = l.raw.Control(func(fd uintptr) {
		// For a listening socket the kernel reports the length of the
		// accept queue in this field.
		if info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			n = int(info.Unacked)
		}
	})
	return n
}

// interruptBy makes a pending wait return when ctx ends. The function it
// returns undoes that.
func (l *listener) interruptBy(ctx context.Context) func() {
	stop := context.AfterFunc(ctx, func() { _ = l.file.SetReadDeadline(aLongTimeAgo) })
	return func() { stop() }
}

func (l *listener) close() { l.file.Close() }

// addrPort converts a peer's address; a v4-mapped one becomes plain IPv4.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(sa.Addr).Unmap(), uint16(sa.Port))
	}
	return netip.AddrPort{}
}
