package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"
)

const (
	retryEach   = time.Millisecond
	giveUp      = 2 * time.Millisecond // a SYN that nobody took; a later one will overtake it
	answerLimit = time.Minute
)

var (
	request = []byte("GET / HTTP/1.1\r\nHost: bench\r\n\r\n")
	answer  = []byte("HTTP/1.1 200")
)

// A client asks over connections of its own and tells when the first byte of an answer came. It works on bare sockets in
// one thread, so that asking each millisecond costs the machine next to nothing.
type client struct {
	thread  *thread
	request []byte
	answer  []byte // what an answer begins with
}

func newClient(enter func() error) (*client, error) {
	t, err := newThread(enter)
	return &client{t, request, answer}, err
}

func (c *client) close() { c.thread.close() }

// once asks over one connection.
func (c *client) once(ctx context.Context, to netip.AddrPort) (time.Time, error) {
	return c.ask(ctx, to, 0)
}

// again asks over a new connection each millisecond until one is answered. A connection that is not there after two
// milliseconds is given up: a sandbox that finds the SYNs of hundreds of clients when it wakes would deal with them all
// before it answered the last.
func (c *client) again(ctx context.Context, to netip.AddrPort) (time.Time, error) {
	return c.ask(ctx, to, retryEach)
}

func (c *client) ask(ctx context.Context, to netip.AddrPort, each time.Duration) (at time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	q := &question{request: c.request, answer: c.answer, to: &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}, each: each}
	c.thread.do(func() { at, err = q.run(ctx) })
	if err != nil {
		return at, fmt.Errorf("ask %s: %w", to, err)
	}
	return at, nil
}

// A question is one or more attempts to get an answer.
type question struct {
	to       *unix.SockaddrInet4
	each     time.Duration // 0: one attempt only
	next     time.Time
	attempts []*attempt
	failed   error // the last attempt's
	request  []byte
	answer   []byte
}

type attempt struct {
	fd   int
	born time.Time
	sent bool
}

func (q *question) run(ctx context.Context) (time.Time, error) {
	defer q.closeAll()
	for q.next = time.Now(); ctx.Err() == nil; {
		if err := q.open(); err != nil {
			return time.Time{}, err
		}
		polled := make([]unix.PollFd, len(q.attempts))
		for i, a := range q.attempts {
			polled[i] = unix.PollFd{Fd: int32(a.fd), Events: a.awaits()}
		}
		if _, err := unix.Poll(polled, 1); err != nil && !errors.Is(err, unix.EINTR) {
			return time.Time{}, err
		}
		now := time.Now()
		if q.look(polled) {
			return now, nil
		}
		q.drop(now)
		if q.each == 0 && len(q.attempts) == 0 {
			return time.Time{}, q.failed
		}
	}
	return time.Time{}, errors.Join(context.Cause(ctx), q.failed)
}

// open begins an attempt when its time has come.
func (q *question) open() error {
	now := time.Now()
	if now.Before(q.next) {
		return nil
	}
	q.next = now.Add(q.each)
	if q.each == 0 {
		q.next = now.Add(answerLimit)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	q.attempts = append(q.attempts, &attempt{fd: fd, born: now})
	if err := unix.Connect(fd, q.to); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		return err
	}
	return nil
}

// look does what each attempt is ready for, and says whether one was answered.
func (q *question) look(polled []unix.PollFd) bool {
	for i, a := range q.attempts[:len(polled)] {
		if polled[i].Revents == 0 {
			continue
		}
		answered, err := a.advance(q.request, q.answer)
		if answered {
			return true
		}
		if err != nil {
			q.failed = err
			a.born = time.Time{} // to be dropped
		}
	}
	return false
}

// drop closes the attempts that failed, and of several those that are too old to matter.
func (q *question) drop(now time.Time) {
	kept := q.attempts[:0]
	for _, a := range q.attempts {
		if a.born.IsZero() || q.each > 0 && !a.sent && now.Sub(a.born) > giveUp {
			_ = unix.Close(a.fd)
			continue
		}
		kept = append(kept, a)
	}
	q.attempts = kept
}

func (q *question) closeAll() {
	for _, a := range q.attempts {
		_ = unix.Close(a.fd)
	}
}

func (a *attempt) awaits() int16 {
	if a.sent {
		return unix.POLLIN
	}
	return unix.POLLOUT
}

// advance sends the request, or reads the answer.
func (a *attempt) advance(request, answer []byte) (answered bool, err error) {
	if !a.sent {
		code, err := unix.GetsockoptInt(a.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if err == nil && code != 0 {
			err = unix.Errno(code)
		}
		if err == nil {
			_, err = unix.Write(a.fd, request)
		}
		a.sent = true
		return false, err
	}
	var b [4096]byte
	n, err := unix.Read(a.fd, b[:])
	switch {
	case errors.Is(err, unix.EAGAIN):
		return false, nil
	case err != nil:
		return false, err
	case !bytes.HasPrefix(b[:n], answer):
		return false, fmt.Errorf("answered %.60q", b[:n])
	}
	return true, nil
}
