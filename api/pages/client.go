package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// Client is a connection to the daemon, for one request at a time. After an error that isn't an *Error only Close may be called.
type Client struct{ conn net.Conn }

// Dial connects.
func Dial(ctx context.Context, socket string) (*Client, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return nil, fmt.Errorf("the daemon can't be asked for what is in the store: %w", err)
	}
	return &Client{conn: conn}, nil
}

// Close ends the connection. What it has open is closed a moment after the last that reads it.
func (c *Client) Close() error { return c.conn.Close() }

// Look asks what the daemon knows, and for a ticket of that sequence, where it isn't 0.
func (c *Client) Look(ctx context.Context, w Workload, sequence uint64) (Answer, error) {
	a, _, err := c.do(ctx, Request{Op: OpLook, Workload: &w, Sequence: sequence}, nil)
	return a, err
}

// Open opens a generation, 0 being the newest, and gives its manifest.json. first are chunks that are going to be asked for first;
// ahead says that all are. With an *Error the answer may still have Generations.
func (c *Client) Open(ctx context.Context, w Workload, sequence uint64, first []int, ahead bool) (Answer, []byte, error) {
	first = first[:min(len(first), MaxFirst)]
	return c.do(ctx, Request{Op: OpOpen, Workload: &w, Sequence: sequence, First: first, Ahead: ahead}, nil)
}

// Attach opens by a ticket.
func (c *Client) Attach(ctx context.Context, ticket string) error {
	_, _, err := c.do(ctx, Request{Op: OpAttach, Ticket: ticket}, nil)
	return err
}

// Expect says what is going to be asked for: first these chunks, and with ahead all others, too.
func (c *Client) Expect(ctx context.Context, first []int, ahead bool) error {
	_, _, err := c.do(ctx, Request{Op: OpExpect, First: first[:min(len(first), MaxFirst)], Ahead: ahead}, nil)
	return err
}

// Read fills p, of at most MaxRead bytes, from a file of the open generation.
func (c *Client) Read(ctx context.Context, file string, p []byte, off int64) error {
	_, _, err := c.do(ctx, Request{Op: OpRead, File: file, Offset: off, Length: len(p)}, p)
	return err
}

// Pin keeps a generation whatever its age.
func (c *Client) Pin(ctx context.Context, w Workload, sequence uint64) error {
	_, _, err := c.do(ctx, Request{Op: OpPin, Workload: &w, Sequence: sequence}, nil)
	return err
}

// Release ends what is open, for all connections.
func (c *Client) Release(ctx context.Context) error {
	_, _, err := c.do(ctx, Request{Op: OpClose}, nil)
	return err
}

// do asks, and reads what follows the answer, into to where it is given.
func (c *Client) do(ctx context.Context, r Request, to []byte) (a Answer, body []byte, err error) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err != nil {
			err = errors.Join(context.Cause(ctx), err)
		}
	}()
	if err := WriteMessage(c.conn, r, MaxRequest); err != nil {
		return a, nil, fmt.Errorf("ask the daemon: %w", err)
	}
	if err := ReadMessage(c.conn, &a, MaxAnswer); err != nil {
		return a, nil, fmt.Errorf("the daemon's answer: %w", noEOF(err))
	}
	if a.Class != "" {
		return a, nil, &Error{a.Class, a.Error}
	}
	switch {
	case to == nil && a.Bytes >= 0 && a.Bytes <= MaxDocument:
		to = make([]byte, a.Bytes)
	case a.Bytes != len(to):
		return a, nil, fmt.Errorf("the daemon answers %d bytes, %d were asked for", a.Bytes, len(to))
	}
	if _, err := io.ReadFull(c.conn, to); err != nil {
		return a, nil, fmt.Errorf("the daemon's answer: %w", noEOF(err))
	}
	return a, to, nil
}
