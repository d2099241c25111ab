package pages

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Remote is a source that the node's daemon serves from the durable tier: api/pages of the module above says how, and is to be changed
// together with this.
type Remote struct {
	Socket string
	Ticket string
	// Patience is how long a daemon that is gone, or a store that can't be reached, is asked again.
	Patience time.Duration
	// Ahead has the daemon fetch all of a file before it is asked for.
	Ahead bool
}

// RemoteError is what the daemon has answered instead of bytes.
type RemoteError struct{ Class, Message string }

func (e *RemoteError) Error() string { return e.Message }

const (
	unavailable = "unavailable" // a class: it is worth another try
	maxAnswer   = 256 << 10
	// remoteRead is the most that one request may ask for.
	remoteRead = 1 << 20
	// dialWithin and answerWithin bound one try. The daemon's own limits are shorter than the latter.
	dialWithin   = 5 * time.Second
	answerWithin = 25 * time.Second

	firstPause = 20 * time.Millisecond
	mostPause  = 500 * time.Millisecond
)

// Open connects to nobody yet: a daemon that is away is waited for by the reads.
func (r *Remote) Open(name string) (Blob, error) {
	return &remoteBlob{Remote: r, name: name}, nil
}

type remoteBlob struct {
	*Remote
	name string

	mu     sync.Mutex // guards the fields below
	idle   []net.Conn
	first  []int // to be told with the next connection
	closed bool
}

// ReadSize is how much is best asked for at a time.
func (*remoteBlob) ReadSize() int64 { return remoteRead }

// Expect implements Expecter.
func (b *remoteBlob) Expect(chunks []int) {
	b.mu.Lock()
	b.first = chunks
	b.mu.Unlock()
	go func() {
		if c, err := b.connect(); err == nil {
			b.put(c)
		}
	}()
}

// ReadAt implements Blob. The error of the daemon or the store is returned when there was none but such for Patience.
func (b *remoteBlob) ReadAt(p []byte, off int64) (n int, err error) {
	for n < len(p) {
		part := p[n:min(len(p), n+remoteRead)]
		if err := b.patiently(func(c net.Conn) error { return b.read(c, part, off+int64(n)) }); err != nil {
			return n, fmt.Errorf("from the store: %w", err)
		}
		n += len(part)
	}
	return n, nil
}

// patiently tries again what may go better another time.
func (b *remoteBlob) patiently(ask func(net.Conn) error) error {
	begun := time.Now()
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		c, err := b.get()
		if err == nil {
			if err = ask(c); err == nil {
				b.put(c)
				return nil
			}
		}
		var answered *RemoteError
		isAnswer := errors.As(err, &answered)
		if c != nil && isAnswer {
			b.put(c)
		} else if c != nil {
			_ = c.Close()
		}
		if isAnswer && answered.Class != unavailable {
			return err
		}
		if time.Since(begun)+pause > b.Patience {
			return fmt.Errorf("in vain for %v: %w", b.Patience, err)
		}
		time.Sleep(pause)
	}
}

// get gives a connection that has the snapshot open.
func (b *remoteBlob) get() (net.Conn, error) {
	b.mu.Lock()
	if n := len(b.idle); n > 0 {
		c := b.idle[n-1]
		b.idle = b.idle[:n-1]
		b.mu.Unlock()
		return c, nil
	}
	b.mu.Unlock()
	return b.connect()
}

func (b *remoteBlob) put(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		_ = c.Close()
		return
	}
	b.idle = append(b.idle, c)
}

// connect makes a connection, and opens the snapshot.
func (b *remoteBlob) connect() (net.Conn, error) {
	c, err := net.DialTimeout("unix", b.Socket, dialWithin)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	first := b.first
	b.first = nil
	b.mu.Unlock()
	if err := exchange(c, remoteRequest{Op: "attach", Ticket: b.Ticket, First: first, Ahead: b.Ahead}, nil); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func (b *remoteBlob) read(c net.Conn, p []byte, off int64) error {
	return exchange(c, remoteRequest{Op: "read", File: b.name, Offset: off, Length: len(p)}, p)
}

// Close implements Blob.
func (b *remoteBlob) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, c := range b.idle {
		_ = c.Close()
	}
	b.idle = nil
	return nil
}

type remoteRequest struct {
	Op     string
	Ticket string `json:",omitempty"`
	First  []int  `json:",omitempty"`
	Ahead  bool   `json:",omitempty"`
	File   string `json:",omitempty"`
	Offset int64  `json:",omitempty"`
	Length int    `json:",omitempty"`
}

// exchange asks, and reads as much as p takes. After an error that isn't a *RemoteError the connection is of no use any more.
func exchange(c net.Conn, r remoteRequest, p []byte) error {
	if err := c.SetDeadline(time.Now().Add(answerWithin)); err != nil {
		return err
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)); err != nil {
		return err
	}
	var head [4]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n > maxAnswer {
		return fmt.Errorf("an answer of %d bytes", n)
	}
	data = make([]byte, n)
	if _, err := io.ReadFull(c, data); err != nil {
		return err
	}
	var a struct {
		Class, Error string
		Bytes        int
	}
	if err := json.Unmarshal(data, &a); err != nil {
		return err
	}
	if a.Class != "" {
		return &RemoteError{a.Class, a.Error}
	}
	if a.Bytes != len(p) {
		return fmt.Errorf("%d bytes are answered, %d were asked for", a.Bytes, len(p))
	}
	_, err = io.ReadFull(c, p)
	return err
}
