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
	answers  map[uint64]chan message
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
		packets: p, answers: map[uint64]chan message{},
		gone: make(chan struct{}), done: make(chan struct{}),
	}
	go c.read()
	return c, nil
}

// Send registers the workload, or replaces what was registered, and waits for
// the acknowledgement. The files stay the caller's and may be closed
// afterwards: the daemon has its own. Errors: ErrRefused with the daemon's
// reason, ErrGone, ErrMalformed and ErrTooLarge before anything is sent,
// context.DeadlineExceeded after AckTimeout; then nothing is known about what
// the daemon did, and Close is the way out.
func (c *Conn) Send(h Hello, files []*os.File) error {
	if err := h.valid(len(files)); err != nil {
		return fmt.Errorf("register %s/%s: %w", h.Namespace, h.ID, err)
	}
	if len(files) > maxFiles {
		return fmt.Errorf("register %s/%s: %w: %d descriptors", h.Namespace, h.ID, ErrTooLarge, len(files))
	}
	ctx, cancel := context.WithTimeout(context.Background(), AckTimeout)
	defer cancel()
	m := message{Type: typeHello, Hello: &h, Files: len(files)}
	if err := c.ask(ctx, m, files); err != nil {
		return fmt.Errorf("register %s/%s: %w", h.Namespace, h.ID, err)
	}
	return nil
}

// Ping asks the daemon for a sign of life. Unlike Wait it finds out that a
// daemon hangs: the answer comes from the goroutine that calls Receive.
func (c *Conn) Ping(ctx context.Context) error {
	return c.ask(ctx, message{Type: typePing}, nil)
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
func (c *Conn) ask(ctx context.Context, m message, files []*os.File) error {
	answer := make(chan message, 1)
	c.mu.Lock()
	c.sequence++
	m.Sequence = c.sequence
	c.answers[m.Sequence] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.answers, m.Sequence)
		c.mu.Unlock()
	}()
	if err := c.write(ctx, m, files); err != nil {
		return err
	}
	select {
	case a := <-answer:
		if !a.OK {
			return fmt.Errorf("%w: %s", ErrRefused, a.Error)
		}
		return nil
	case <-c.gone:
		return ErrGone
	case <-ctx.Done():
		return context.Cause(ctx)
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
		closeFDs(fds) // the daemon has none to give
		if errors.Is(err, ErrMalformed) {
			continue
		}
		if err != nil {
			return
		}
		m, err := decode(data)
		if err != nil || m.Type != typeAck {
			continue
		}
		c.mu.Lock()
		if answer := c.answers[m.Sequence]; answer != nil {
			answer <- m
			delete(c.answers, m.Sequence)
		}
		c.mu.Unlock()
	}
}
