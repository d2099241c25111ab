package wakeproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// side is one of the two sockets of a connection, in the runtime's poller.
type side struct {
	raw    syscall.RawConn
	closer io.Closer
	file   *os.File // of the client's side
	onWay  onWay    // from here to the other side; of the goroutine that passes them on

	// The conn's lock guards these.
	ended  bool  // its stream was read to the end
	silent bool  // we have sent our end to it
	dead   error // it takes no more bytes
}

// clientSide takes an accepted descriptor. Only this side has keep-alives, at
// the kernel's own pace: the workload's never get past this kernel, and a
// client that vanished would stay for ever.
func clientSide(fd int) (*side, error) {
	f := os.NewFile(uintptr(fd), "client")
	s, err := newSide(f, f, 1)
	if err != nil {
		resetFD(fd)
		f.Close()
		return nil, err
	}
	s.file = f
	return s, nil
}

// workloadSide takes a dialled connection. Keep-alives on it would wake the
// workload.
func workloadSide(c net.Conn) (*side, error) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		c.Close()
		return nil, fmt.Errorf("the dialer's %T is no socket of the kernel", c)
	}
	s, err := newSide(sc, c, 0)
	if err != nil {
		c.Close()
	}
	return s, err
}

func newSide(sc syscall.Conn, closer io.Closer, keepAlive int) (*side, error) {
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &side{raw: raw, closer: closer}
	return s, s.control(func(fd int) error {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_KEEPALIVE, keepAlive)
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		return nil
	})
}

func (s *side) control(f func(fd int) error) error {
	var failed error
	err := s.raw.Control(func(fd uintptr) { failed = f(int(fd)) })
	return errors.Join(err, failed)
}

func (s *side) closeWrite() error {
	return s.control(func(fd int) error { return unix.Shutdown(fd, unix.SHUT_WR) })
}

// close ends the connection in order: unsent bytes are still sent.
func (s *side) close() { s.closer.Close() }

// reset ends the connection by RST.
func (s *side) reset() {
	_ = s.control(lingerNot)
	s.closer.Close()
}

// lingerNot has the close of a connection be a reset.
func lingerNot(fd int) error {
	return unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
}

// resetFD ends an accepted connection that nobody has looked at yet.
func resetFD(fd int) {
	_ = lingerNot(fd)
	unix.Close(fd)
}

// closed reports whether the TCP connection is over in both directions.
func (s *side) closed() bool {
	const tcpClose = 7 // TCP_CLOSE of the kernel's state machine
	over := true
	_ = s.control(func(fd int) error {
		info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
		over = err == nil && info.State == tcpClose
		return err
	})
	return over
}

// watch waits, after the end of the stream, for a reset, and returns it. It
// returns nil when the side was closed by us.
func (s *side) watch() error {
	var reset error
	_ = s.raw.Read(func(fd uintptr) bool {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(fds, 0); err == nil && fds[0].Revents&unix.POLLERR != 0 {
			reset = syscall.ECONNRESET
			return true
		}
		return false
	})
	return reset
}

// settle waits until the kernel has sent what was written, or can't. There is
// no event for that, so it looks, ever less often.
func (s *side) settle(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	pause := backoff{next: time.Millisecond, last: 50 * time.Millisecond}
	for s.unsent() > 0 && pause.pause(ctx) == nil {
	}
}

// unsent returns how many bytes the kernel has not sent yet.
func (s *side) unsent() int {
	n := 0
	_ = s.control(func(fd int) (err error) {
		n, err = unix.IoctlGetInt(fd, unix.SIOCOUTQNSD)
		return err
	})
	return n
}
