package wakeproxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// ErrDetached is told to the Observer of connections that a Proxy has let go of.
var ErrDetached = errors.New("the connection is carried on elsewhere")

// Detached is an established pair of connections that a Proxy has let go of,
// between two moves of bytes. Whoever has its descriptors, as another process,
// carries it on with Resume.
type Detached struct {
	Port   uint16
	Client netip.AddrPort
	// ClientFD and WorkloadFD are the two sockets.
	ClientFD, WorkloadFD int
	// In is the way to the workload, Out the one to the client.
	In, Out Way
}

// Way is one direction of a Detached.
type Way struct {
	// Ended: the end of the stream has been passed on.
	Ended bool
	// Pipe is the end to read from of a pipe that holds so many Bytes, which are
	// to be delivered first. Without any it is -1.
	Pipe, Bytes int
}

// Descriptors are pointers to all that d has, in an order that is always the same.
func (d *Detached) Descriptors() []*int {
	all := []*int{&d.ClientFD, &d.WorkloadFD}
	for _, w := range []*Way{&d.In, &d.Out} {
		if w.Pipe >= 0 {
			all = append(all, &w.Pipe)
		}
	}
	return all
}

// Close closes the descriptors. Connections that nobody else has are reset.
func (d *Detached) Close() {
	for _, fd := range d.Descriptors() {
		_ = unix.Close(*fd)
	}
}

// Reset resets both connections, and closes the descriptors.
func (d *Detached) Reset() {
	for _, fd := range []int{d.ClientFD, d.WorkloadFD} {
		_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	d.Close()
}

// Detach ends every Serve, as Shutdown does, but lets go of the established
// connections, and returns them: they are the caller's. Those whose workload is
// still being dialled are waited for, and reset when ctx ends.
func (p *Proxy) Detach(ctx context.Context) []Detached {
	p.let()
	_ = p.Shutdown(ctx) // its error is that some were reset, which the Observer was told of
	p.mu.Lock()
	defer p.mu.Unlock()
	loose := p.loose
	p.loose = nil
	return loose
}

// Resume carries on what a Proxy has let go of, until both sides have ended; both
// are reset when one was, or when ctx ends. It owns the descriptors. The error is
// nil when both sides ended in order.
func (p *Proxy) Resume(ctx context.Context, d Detached) error {
	client, err := resumed(d.ClientFD, 1)
	if err != nil {
		d.Reset()
		return fmt.Errorf("client's side: %w", err)
	}
	workload, err := resumed(d.WorkloadFD, 0)
	if err != nil {
		client.reset()
		d.Reset()
		return fmt.Errorf("workload's side: %w", err)
	}
	p.active.Add(1)
	defer p.active.Add(-1)
	c := &conn{client: client, workload: workload, server: &server{Proxy: p}, port: d.Port, peer: d.Client}
	c.take(d.In, client, workload)
	c.take(d.Out, workload, client)
	return c.run(ctx)
}

func resumed(fd, keepAlive int) (*side, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	f := os.NewFile(uintptr(fd), "resumed")
	s, err := newSide(f, f, keepAlive)
	if err == nil {
		s.file = f
	}
	return s, err
}

// take puts one way where it was.
func (c *conn) take(w Way, src, dst *side) {
	if w.Pipe >= 0 {
		src.onWay = onWay{&pipe{r: w.Pipe, w: -1}, w.Bytes}
	}
	if w.Ended {
		src.ended, dst.silent = true, true
		c.halves++
	}
}

// interrupted reports whether a wait for a socket was ended by interrupt.
func interrupted(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }

// interrupt ends the waits for both sockets.
func (c *conn) interrupt() {
	for _, s := range []*side{c.client, c.workload} {
		if d, ok := s.closer.(interface{ SetDeadline(time.Time) error }); ok {
			_ = d.SetDeadline(aLongTimeAgo)
		}
	}
}

// letGo hands both sides on, unless the connection has ended. Nobody passes bytes
// any more.
func (c *conn) letGo() {
	c.once.Do(func() {
		d, err := c.detached()
		if err != nil {
			c.err = err
			for _, s := range []*side{c.client, c.workload} {
				s.reset()
				if s.onWay.bytes > 0 {
					s.onWay.pipe.close()
				}
			}
			return
		}
		c.err = ErrDetached
		c.client.close() // the duplicates stay
		c.workload.close()
		p := c.server.Proxy
		p.mu.Lock()
		defer p.mu.Unlock()
		p.loose = append(p.loose, d)
	})
}

func (c *conn) detached() (d Detached, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := errors.Join(c.client.dead, c.workload.dead); err != nil {
		return d, err // it was to be reset when the other side had its data
	}
	d = Detached{Port: c.port, Client: c.peer}
	if d.ClientFD, err = c.client.duplicate(); err != nil {
		return d, err
	}
	if d.WorkloadFD, err = c.workload.duplicate(); err != nil {
		_ = unix.Close(d.ClientFD)
		return d, err
	}
	d.In, d.Out = wayOf(c.client), wayOf(c.workload)
	return d, nil
}

func wayOf(src *side) Way {
	w := Way{Ended: src.ended, Pipe: -1}
	if src.onWay.bytes > 0 {
		w.Pipe, w.Bytes = src.onWay.pipe.r, src.onWay.bytes
		_ = unix.Close(src.onWay.pipe.w)
	}
	return w
}

func (s *side) duplicate() (fd int, err error) {
	err = s.control(func(own int) (err error) {
		fd, err = unix.FcntlInt(uintptr(own), unix.F_DUPFD_CLOEXEC, 3)
		return os.NewSyscallError("fcntl", err)
	})
	return fd, err
}
