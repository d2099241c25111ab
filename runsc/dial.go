package runsc

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"syscall"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// Inside is a connection to a container's loopback. It is closed by whoever has it.
type Inside struct {
	*net.UnixConn
	// Done is closed when its process inside has ended, or is given up.
	Done <-chan struct{}
	// End kills that process, as EndExec does.
	End func(context.Context) error
}

// Dial connects to a port of the container's loopback, which nothing outside reaches otherwise, by the dial role of
// hibernate-helper inside; to is 127.0.0.1 or ::1 with the port. The connection ends each way by itself. A reset of the
// server's comes as the end of both. Inside it is a process, and so a checkpoint must wait until Done is closed: soon after
// the connection is, or when the sandbox went away.
//
// The error is syscall.ECONNREFUSED when nothing listens there.
func (c *Client) Dial(ctx context.Context, id string, helper *os.File, to netip.AddrPort) (*Inside, error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return nil, fmt.Errorf("dial %s in %s: %w", to, id, err)
	}
	family := "4"
	if to.Addr().Is6() {
		family = "6"
	}
	pid, err := c.Exec(ctx, id, ExecOptions{
		Process:    &specs.Process{Args: []string{"hibernate-helper", "dial", family, strconv.Itoa(int(to.Port()))}, Cwd: "/"},
		Executable: helper, IO: IO{Stdin: theirs, Stdout: theirs},
	})
	_ = theirs.Close()
	if err != nil {
		return nil, errors.Join(err, ours.Close())
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = c.WaitExec(context.Background(), id, pid) // its streams tell how it ended
	}()
	if err := c.awaitConnected(ctx, ours); err != nil {
		_ = ours.Close()
		if !errors.Is(err, syscall.ECONNREFUSED) { // it may be in its connect, to a server that accepts nobody
			go func() { _ = c.EndExec(context.Background(), id, pid) }() // within twice its deadline; what can't be ended is given up
		}
		return nil, fmt.Errorf("dial %s in %s: %w", to, id, err)
	}
	return &Inside{ours, ended, func(ctx context.Context) error { return c.EndExec(ctx, id, pid) }}, nil
}

// awaitConnected reads the byte that the helper says first.
func (c *Client) awaitConnected(ctx context.Context, conn *net.UnixConn) error {
	ctx, cancel := context.WithTimeoutCause(ctx, c.Timeouts.exec(), ErrDeadline)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	_, err := conn.Read(make([]byte, 1))
	if !stop() {
		return ended(ctx)
	}
	if err != nil { // it ended without a word
		return syscall.ECONNREFUSED
	}
	return nil
}

// socketPair makes two ends of a stream, one of which is for another process.
func socketPair() (ours *net.UnixConn, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	theirs = os.NewFile(uintptr(fds[1]), "dial")
	f := os.NewFile(uintptr(fds[0]), "dial")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil, nil, errors.Join(err, theirs.Close())
	}
	return conn.(*net.UnixConn), theirs, nil
}
