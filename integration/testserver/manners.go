package main

import (
	"bufio"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
)

// manners is a server whose clients say, in their first line, how it is to behave:
//
//	listen   reads to the end
//	half     ends its own stream, then reads to the end
//	close    closes
//	reset    resets
//	deaf     reads nothing before /manners/read is asked for, then to the end
//
// It answers the line with itself first. How each connection ended is asked for by the peer's address, or by a name that follows
// the command, after a space.
type manners struct {
	mu    sync.Mutex
	guest map[string]*guest // by the peer's address, and by name; guarded by mu
	hear  chan struct{}     // closed when the deaf are to read; guarded by mu
}

// A guest's fields are below the lock of manners.
type guest struct {
	bytes int64
	sum   hash.Hash
	end   string
}

func (m *manners) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go m.receive(c.(*net.TCPConn))
	}
}

func (m *manners) receive(c *net.TCPConn) {
	defer c.Close()
	in := bufio.NewReaderSize(c, 64<<10)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	command, name, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	g := &guest{sum: sha256.New(), end: "open"}
	hear := m.welcome(g, c.RemoteAddr().String(), name)
	if _, err := io.WriteString(c, line); err != nil {
		return
	}
	switch command {
	case "close":
		return
	case "reset":
		c.SetLinger(0)
		return
	case "half":
		c.CloseWrite()
	case "deaf":
		<-hear
	}
	_, err = io.Copy(ledger{m, g}, in)
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		g.end = "eof"
	case errors.Is(err, syscall.ECONNRESET):
		g.end = "reset"
	default:
		g.end = err.Error()
	}
}

func (m *manners) welcome(g *guest, names ...string) (hear chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.guest == nil {
		m.guest = map[string]*guest{}
	}
	if m.hear == nil {
		m.hear = make(chan struct{})
	}
	for _, name := range names {
		m.guest[name] = g
	}
	return m.hear
}

// ledger counts what a guest says.
type ledger struct {
	m *manners
	g *guest
}

func (c ledger) Write(p []byte) (int, error) {
	c.m.mu.Lock()
	defer c.m.mu.Unlock()
	c.g.bytes += int64(len(p))
	return c.g.sum.Write(p)
}

type guestEnd struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	End    string `json:"end"`
}

func (m *manners) handle(r *http.Request) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.guest[r.URL.Query().Get("peer")]
	if g == nil {
		return nil, fmt.Errorf("no connection from %q", r.URL.Query().Get("peer"))
	}
	return guestEnd{g.bytes, hexSum(g.sum), g.end}, nil
}

// listen has those read that are deaf now.
func (m *manners) listen(*http.Request) (any, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.hear != nil {
		close(m.hear)
		m.hear = nil
	}
	return "ok", nil
}
