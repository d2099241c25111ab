package wakeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// settleFor bounds how long a survivor of a reset is given to receive what was
// sent before the reset.
const settleFor = 5 * time.Second

// serve runs one accepted connection from dial to end. What was read from it
// before goes first.
func (s *server) serve(fd int, client netip.AddrPort, before []byte) {
	defer s.admit.release()
	defer s.active.Add(-1)
	d := Drained{Port: s.listener.meant(fd), Client: client}
	start := time.Now()
	d.Dial, d.Err = s.connect(fd, client, before, start, &d)
	d.Took = time.Since(start)
	s.observer.Drained(d)
}

func (s *server) connect(fd int, client netip.AddrPort, before []byte, start time.Time, d *Drained) (time.Duration, error) {
	from, err := clientSide(fd)
	if err != nil {
		return 0, err
	}
	to, err := s.dial(client, d.Port)
	dial := time.Since(start)
	if err != nil {
		s.log.Warn("connection refused: the workload can't be reached", "port", d.Port, "client", client, "error", err)
		if d.Refused = RefusedReset; s.answer {
			d.Refused = refuse(from.file, err)
		} else {
			from.reset()
		}
		return dial, err
	}
	c := &conn{client: from, workload: to, server: s, port: d.Port, peer: client}
	if from.onWay, err = s.pipes.filled(before); err != nil {
		c.abort(err)
		return dial, err
	}
	err = c.run(s.connCtx)
	d.In, d.Out = c.in.Load(), c.out.Load()
	return dial, err
}

// dial connects to the workload. Right after a wake its server may need a
// moment, and it may have fallen asleep again.
func (s *server) dial(client netip.AddrPort, port uint16) (*side, error) {
	ctx, cancel := context.WithTimeout(s.connCtx, s.limits().DialTimeout)
	defer cancel()
	refusedUntil := time.Now().Add(s.limits().RefusedFor)
	pause := backoff{next: 500 * time.Microsecond, last: 100 * time.Millisecond}
	for {
		conn, err := s.dialer.Dial(ctx, client, port)
		if err == nil {
			return workloadSide(conn)
		}
		err = fmt.Errorf("dial port %d: %w", port, err)
		refused := errors.Is(err, syscall.ECONNREFUSED)
		if ctx.Err() != nil || refused && !time.Now().Before(refusedUntil) {
			return nil, err
		}
		if perr := pause.pause(ctx); perr != nil {
			return nil, err
		}
		if refused {
			continue
		}
		if werr := s.waker.wake(ctx, reasonDial); werr != nil {
			return nil, errors.Join(err, werr)
		}
	}
}

// conn is an established pair of connections.
type conn struct {
	client, workload *side
	server           *server
	port             uint16
	peer             netip.AddrPort // of the client
	in, out          atomic.Int64

	once sync.Once // the end: guards err
	err  error

	mu     sync.Mutex // guards each side's ended, silent and dead
	halves int        // ways that ended in order
}

// run passes bytes both ways until both sides have ended, one was reset, ctx
// ended, or the proxy lets go of its connections. Both sides are closed when it
// returns.
func (c *conn) run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { c.abort(context.Cause(ctx)) })
	defer stop()
	keep := context.AfterFunc(c.server.letting, c.interrupt)
	defer keep()
	var wg sync.WaitGroup
	wg.Go(func() { c.way(ctx, c.client, c.workload, &c.in, &c.server.in) })
	c.way(ctx, c.workload, c.client, &c.out, &c.server.out)
	wg.Wait()
	if c.server.letting.Err() != nil {
		c.letGo()
	}
	return c.err
}

// way passes bytes one way, then the end of the stream or the reset.
func (c *conn) way(ctx context.Context, src, dst *side, counters ...*atomic.Int64) {
	readErr, writeErr := c.pump(ctx, src, dst, counters)
	switch {
	case interrupted(readErr), interrupted(writeErr):
		return
	case writeErr != nil:
		c.broken(ctx, dst, src, writeErr)
		return
	case readErr == nil:
		readErr = c.hiddenReset(src)
	}
	if readErr == nil {
		if readErr = c.endOf(src, dst); readErr == nil {
			readErr = src.watch()
		}
	}
	if readErr != nil {
		c.failed(ctx, dst, readErr)
	}
}

// pump passes bytes one way, unless its stream has ended already.
func (c *conn) pump(ctx context.Context, src, dst *side, counters []*atomic.Int64) (readErr, writeErr error) {
	if c.hasEnded(src) {
		return nil, nil
	}
	p := pump{src: src, dst: dst, pipes: c.server.pipes, counters: counters, done: ctx.Done(), onWay: src.onWay}
	readErr, writeErr = p.run()
	src.onWay = p.onWay
	return readErr, writeErr
}

func (c *conn) hasEnded(s *side) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.ended
}

// hiddenReset tells a reset from the end of the stream when the error was
// already reported to the other way: a socket that has not sent its own end
// is closed by nothing but a reset.
func (c *conn) hiddenReset(src *side) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if src.dead != nil {
		return src.dead
	}
	if !src.silent && src.closed() {
		return syscall.ECONNRESET
	}
	return nil
}

// endOf passes the end of src's stream on to dst. When it is the second, the
// connection has ended. If src died meanwhile, which nobody would notice any
// more, it returns the error.
func (c *conn) endOf(src, dst *side) error {
	c.mu.Lock()
	if !src.ended {
		src.ended, dst.silent = true, true
		c.halves++
	}
	last, dead := c.halves == 2, src.dead
	c.mu.Unlock()
	if dead != nil {
		return dead
	}
	_ = dst.closeWrite() // fails when dst was reset: who reads from it finds out
	if last {
		c.once.Do(func() {
			c.client.close()
			c.workload.close()
		})
	}
	return nil
}

// broken handles a side that took no more bytes. What it sent before is still
// to be delivered, so the way that reads from it goes on to its end.
func (c *conn) broken(ctx context.Context, dead, survivor *side, err error) {
	c.mu.Lock()
	dead.dead = err
	nobodyReads := dead.ended || !dead.closed()
	c.mu.Unlock()
	if nobodyReads {
		c.failed(ctx, survivor, err)
	}
}

// failed resets both sides, once the survivor's socket has sent what came
// before.
func (c *conn) failed(ctx context.Context, survivor *side, err error) {
	c.once.Do(func() {
		c.err = err
		survivor.settle(ctx)
		c.client.reset()
		c.workload.reset()
	})
}

// abort resets both sides at once.
func (c *conn) abort(err error) {
	c.once.Do(func() {
		c.err = err
		c.client.reset()
		c.workload.reset()
	})
}
