package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// packets sends and receives packets with descriptors. Reading and writing may
// go on at the same time, each by one goroutine.
type packets struct {
	conn *net.UnixConn
	raw  syscall.RawConn
}

// newPackets takes conn over, and closes it when the other side is not root
// or our own user.
func newPackets(conn *net.UnixConn) (*packets, *unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	var cred *unix.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, failed); err == nil {
		err = permitted(cred, os.Getuid())
	}
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return &packets{conn: conn, raw: raw}, cred, nil
}

func permitted(cred *unix.Ucred, self int) error {
	if cred.Uid != 0 && int(cred.Uid) != self {
		return fmt.Errorf("%w: uid %d", ErrCredentials, cred.Uid)
	}
	return nil
}

// send writes one packet before ctx ends.
func (p *packets) send(ctx context.Context, m message, files []*os.File) error {
	data, err := m.encode()
	if err != nil {
		return err
	}
	fds, err := descriptors(files)
	if err != nil {
		return err
	}
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	defer deadline(ctx, p.conn.SetWriteDeadline)()
	_, _, err = p.conn.WriteMsgUnix(data, rights, nil)
	runtime.KeepAlive(files) // and so their descriptors
	return p.explain(ctx, "send", err)
}

// descriptors returns the descriptors of files without changing their mode, as
// Fd would.
func descriptors(files []*os.File) ([]int, error) {
	fds := make([]int, 0, len(files))
	for _, f := range files {
		raw, err := f.SyscallConn()
		if err == nil {
			err = raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) })
		}
		if err != nil {
			return nil, fmt.Errorf("descriptor of %s: %w", f.Name(), err)
		}
	}
	return fds, nil
}

// receive reads one packet. The descriptors are the caller's, with an error
// there are none. It allocates only when a packet has come.
func (p *packets) receive(ctx context.Context) ([]byte, []int, error) {
	defer deadline(ctx, p.conn.SetReadDeadline)()
	var data []byte
	var fds []int
	var failed error
	err := p.raw.Read(func(fd uintptr) bool {
		data, fds, failed = receivePacket(int(fd))
		return failed != unix.EAGAIN
	})
	if err == nil {
		err = failed
	}
	return data, fds, p.explain(ctx, "receive", err)
}

func receivePacket(fd int) ([]byte, []int, error) {
	size, _, _, _, err := unix.Recvmsg(fd, nil, nil, unix.MSG_PEEK|unix.MSG_TRUNC)
	switch {
	case err != nil:
		return nil, nil, err
	case size == 0: // we send no empty packets
		return nil, nil, ErrGone
	}
	data := make([]byte, min(size, maxMessage))
	rights := make([]byte, unix.CmsgSpace(4*253))
	n, oobn, flags, _, err := unix.Recvmsg(fd, data, rights, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, nil, err
	}
	fds, err := parseRights(rights[:oobn])
	if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
		err = fmt.Errorf("%w: packet of %d bytes is cut", ErrMalformed, size)
	}
	if err != nil {
		closeFDs(fds)
		return nil, nil, err
	}
	return data[:n], fds, nil
}

func parseRights(oob []byte) (fds []int, err error) {
	control, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	for _, c := range control {
		if c.Header.Level == unix.SOL_SOCKET && c.Header.Type == unix.SCM_RIGHTS {
			more, err := unix.ParseUnixRights(&c)
			if err != nil {
				return fds, fmt.Errorf("%w: %w", ErrMalformed, err)
			}
			fds = append(fds, more...)
		}
	}
	return fds, nil
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 { // taken by somebody
			unix.Close(fd)
		}
	}
}

// explain makes the cause of ctx of an interrupted call, and ErrGone of the
// ways in which the kernel says so.
func (p *packets) explain(ctx context.Context, what string, err error) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errors.Is(err, os.ErrDeadlineExceeded):
		return context.DeadlineExceeded // the deadline was ctx's
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET), errors.Is(err, net.ErrClosed):
		return ErrGone
	}
	return fmt.Errorf("%s: %w", what, err)
}

// deadline makes calls under set's deadline return when ctx ends. The function
// it returns undoes that.
func deadline(ctx context.Context, set func(time.Time) error) func() {
	if ctx.Done() == nil {
		return func() {}
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = set(time.Unix(1, 0))
		close(done)
	})
	return func() {
		if !stop() {
			<-done
			_ = set(time.Time{})
		}
	}
}
