package wakeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// server is one run of Serve.
type server struct {
	*Proxy
	listener *listener

	accept context.Context // ends when no more connections may be accepted
	cancel context.CancelFunc

	conns   sync.WaitGroup
	connCtx context.Context // ends when its connections must
	reset   context.CancelCauseFunc

	forget [2]func() bool // the Proxy's contexts
}

func newServer(ctx context.Context, p *Proxy, l *listener) *server {
	s := &server{Proxy: p, listener: l}
	s.accept, s.cancel = context.WithCancel(ctx)
	s.forget[0] = context.AfterFunc(p.stopping, s.cancel)
	s.connCtx, s.reset = context.WithCancelCause(context.WithoutCancel(ctx))
	s.forget[1] = context.AfterFunc(p.living, func() { s.reset(ErrClosed) })
	return s
}

// accepting holds and drains, again and again, until accept ends or the
// socket fails.
func (s *server) accepting() error {
	for {
		if err := s.listener.wait(s.accept); err != nil {
			return err
		}
		if !s.admit.try() {
			s.observer.Limited(s.listener.port)
			if err := s.admit.acquire(s.accept); err != nil {
				return err
			}
		}
		if err := s.round(); err != nil {
			return err
		}
	}
}

// round wakes the workload for the connections that wait, and drains or resets
// them. It has been admitted once.
func (s *server) round() error {
	s.observer.Held(s.listener.port)
	err := s.wake()
	switch {
	case err == nil:
		return s.drain()
	case s.accept.Err() != nil:
		s.admit.release()
		return context.Cause(s.accept)
	}
	s.admit.release()
	s.log.Warn("connections are refused: the workload doesn't wake", "port", s.listener.port, "error", err)
	return s.refuse(fmt.Errorf("wake for port %d: %w", s.listener.port, err))
}

// wake tries until the gate is open, the time of the hold is over, or there is
// no more sense in it. It returns the newest failure with the end of the time.
func (s *server) wake() error {
	ctx, cancel := context.WithTimeoutCause(s.accept, s.limits().HoldFor, ErrHeldTooLong)
	defer cancel()
	pause := backoff{next: 50 * time.Millisecond, last: 2 * time.Second}
	var failed error
	for {
		err := s.waker.wake(ctx, reasonConnection)
		switch {
		case err == nil || errors.Is(err, ErrPermanent) || s.accept.Err() != nil:
			return err
		case ctx.Err() != nil:
			return errors.Join(context.Cause(ctx), failed)
		}
		failed = err
		s.log.Warn("the wake failed and is tried again", "port", s.listener.port, "error", err)
		if perr := pause.pause(ctx); perr != nil {
			return errors.Join(perr, failed)
		}
	}
}

// drain accepts until the backlog is empty or a limit is reached. It has been
// admitted once, and takes one admission for each further connection.
func (s *server) drain() error {
	for s.accept.Err() == nil {
		fd, client, err := s.take()
		if err != nil {
			s.admit.release()
			if errors.Is(err, errEmpty) {
				return nil
			}
			return err
		}
		s.conns.Go(func() { s.serve(fd, client, nil) })
		if !s.admit.try() {
			return nil
		}
	}
	s.admit.release()
	return context.Cause(s.accept)
}

// refuse accepts what waits now and refuses it.
func (s *server) refuse(cause error) error {
	for range s.listener.waiting() {
		fd, client, err := s.take()
		if errors.Is(err, errEmpty) {
			return nil
		}
		if err != nil {
			return err
		}
		if !s.answer || !s.admit.try() {
			s.resetOne(fd, client, cause)
			continue
		}
		s.conns.Go(func() {
			defer s.admit.release()
			s.refuseOne(fd, client, cause)
		})
	}
	return nil
}

// refuseOne refuses a connection as the options say.
func (s *server) refuseOne(fd int, client netip.AddrPort, cause error) {
	if !s.answer {
		s.resetOne(fd, client, cause)
		return
	}
	d := Drained{Port: s.listener.meant(fd), Client: client, Err: cause}
	defer s.active.Add(-1)
	start := time.Now()
	d.Refused = refuse(os.NewFile(uintptr(fd), "client"), cause)
	d.Took = time.Since(start)
	s.observer.Drained(d)
}

func (s *server) resetOne(fd int, client netip.AddrPort, cause error) {
	d := Drained{Port: s.listener.meant(fd), Client: client, Err: cause, Refused: RefusedReset}
	resetFD(fd)
	s.active.Add(-1)
	s.observer.Drained(d)
}

// take accepts one connection. Clients that gave up are passed over, and other
// trouble, like a shortage of descriptors, is waited out: the kernel holds on.
func (s *server) take() (int, netip.AddrPort, error) {
	pause := backoff{next: 5 * time.Millisecond, last: time.Second}
	for {
		fd, client, err := s.listener.accept()
		switch {
		case err == nil:
			s.active.Add(1)
			s.observer.Accepted(s.listener.port, client)
			return fd, client, nil
		case errors.Is(err, errEmpty), errors.Is(err, ErrNotListening):
			return -1, client, err
		case errors.Is(err, unix.ECONNABORTED):
			continue
		}
		s.log.Warn("connections wait: the kernel doesn't hand them out", "port", s.listener.port, "error", err)
		if perr := pause.pause(s.accept); perr != nil {
			return -1, client, perr
		}
	}
}

// end waits for the connections, and resets them when their grace is over.
func (s *server) end() {
	s.cancel()
	if s.grace != Unlimited {
		t := time.AfterFunc(s.grace, func() { s.reset(ErrGrace) })
		defer t.Stop()
	}
	s.conns.Wait()
	s.reset(ErrClosed)
	for _, forget := range s.forget {
		forget()
	}
}
