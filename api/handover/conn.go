package handover

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// AckTimeout bounds the wait for the daemon's acknowledgement of a hello.
const AckTimeout = 10 * time.Second

// Conn is a shim's connection to the daemon. Its methods may be called from
// several goroutines.
type Conn struct {
	packets *packets
	gone    chan struct{} // closed when the daemon is
	done    chan struct{} // closed when the reading goroutine has ended

	sending sync.Mutex // one hello's packets stay together

	mu       sync.Mutex // guards the fields below
	sequence uint64
	waiting  map[uint64]*question
}

// question is what waits for an answer.
type question struct {
	kept   map[uint16]*os.File // came so far; guarded by Conn.mu until the answer is there
	answer chan message
}

// Dial connects to the daemon. Nothing is registered before Send.
func Dial(ctx context.Context, path string) (*Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unixpacket", path)
	if err != nil {
		return nil, fmt.Errorf("dial the daemon: %w", err)
	}
	p, _, err := newPackets(nc.(*net.UnixConn))
	if err != nil {
		return nil, fmt.Errorf("dial the daemon at %s: %w", path, err)
	}
	c := &Conn{
		packets: p, waiting: map[uint64]*question{},
		gone: make(chan struct{}), done: make(chan struct{}),
	}
	go c.read()
	return c, nil
}

// Send registers the workload, or replaces what was registered, and waits for
// the acknowledgement. The files stay the caller's and may be closed
// afterwards: the daemon has its own. With the acknowledgement the daemon may
// give back listening sockets, by port, that it has kept from an earlier shim of
// the workload, with who waits in their backlogs; they are the caller's.
//
// Errors: ErrRefused with the daemon's reason, ErrGone, ErrMalformed and
// ErrTooLarge before anything is sent, ctx's cause, and
// context.DeadlineExceeded after AckTimeout; then nothing is known about what
// the daemon did, and Close is the way out.
func (c *Conn) Send(ctx context.Context, h Hello, files []*os.File) (kept map[uint16]*os.File, err error) {
	if err := h.valid(len(files)); err != nil {
		return nil, fmt.Errorf("register %s/%s: %w", h.Namespace, h.ID, err)
	}
	if len(files) > maxFiles {
		return nil, fmt.Errorf("register %s/%s: %w: %d descriptors", h.Namespace, h.ID, ErrTooLarge, len(files))
	}
	ctx, cancel := context.WithTimeout(ctx, AckTimeout)
	defer cancel()
	m := message{Type: typeHello, Hello: &h, Files: len(files)}
	if kept, err = c.ask(ctx, m, files); err != nil {
		return nil, fmt.Errorf("register %s/%s: %w", h.Namespace, h.ID, err)
	}
	return kept, nil
}

// End tells the daemon that the workload has ended: whoever waits for it, or is
// served by the daemon, is reset. It doesn't wait for the daemon. Whoever breaks
// the connection without having said so is taken for a shim that died, whose
// workload may come back.
func (c *Conn) End() error {
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	return c.write(ctx, message{Type: typeEnded}, nil)
}

// Ping asks the daemon for a sign of life. Unlike Wait it finds out that a
// daemon hangs: the answer comes from the goroutine that calls Receive.
func (c *Conn) Ping(ctx context.Context) error {
	_, err := c.ask(ctx, message{Type: typePing}, nil)
	return err
}

// Wait blocks until the daemon is gone or Close was called, and returns nil
// then, or the cause of ctx when that ends first.
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.gone:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Close ends the registration.
func (c *Conn) Close() error {
	err := c.packets.conn.Close()
	<-c.done
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ask sends a message and waits for its answer.
func (c *Conn) ask(ctx context.Context, m message, files []*os.File) (kept map[uint16]*os.File, err error) {
	q := &question{answer: make(chan message, 1), kept: make(map[uint16]*os.File)}
	c.mu.Lock()
	c.sequence++
	m.Sequence = c.sequence
	c.waiting[m.Sequence] = q
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.waiting, m.Sequence)
		if err != nil {
			q.close()
		}
	}()
	if err := c.write(ctx, m, files); err != nil {
		return nil, err
	}
	select {
	case a := <-q.answer:
		if !a.OK {
			return nil, fmt.Errorf("%w: %s", ErrRefused, a.Error)
		}
		return q.kept, nil
	case <-c.gone:
		return nil, ErrGone
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

func (q *question) close() {
	for _, f := range q.kept {
		f.Close()
	}
}

// write sends a message with all its files.
func (c *Conn) write(ctx context.Context, m message, files []*os.File) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	for {
		n := min(len(files), maxFilesPerMessage)
		if err := c.packets.send(ctx, m, files[:n]); err != nil {
			return err
		}
		if files = files[n:]; len(files) == 0 {
			return nil
		}
		m = message{Type: typeFiles, Sequence: m.Sequence}
	}
}

// read hands out the answers until the daemon is gone.
func (c *Conn) read() {
	defer close(c.done)
	defer close(c.gone)
	for {
		data, fds, err := c.packets.receive(context.Background())
		if errors.Is(err, ErrMalformed) {
			continue
		}
		if err != nil {
			return
		}
		m, err := decode(data)
		if err != nil {
			closeFDs(fds)
			continue
		}
		c.take(m, fds)
	}
}

// take gives a message to whoever waits for it. It owns the descriptors.
func (c *Conn) take(m message, fds []int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	q := c.waiting[m.Sequence]
	switch {
	case q == nil:
	case m.Type == typeKept && len(fds) == len(m.Ports):
		for i, port := range m.Ports {
			if q.kept[port] == nil {
				q.kept[port] = os.NewFile(uintptr(fds[i]), fmt.Sprintf("kept port %d", port))
				fds[i] = -1
			}
		}
	case m.Type == typeAck:
		q.answer <- m
		delete(c.waiting, m.Sequence)
	}
	closeFDs(fds)
}
