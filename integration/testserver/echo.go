package main

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"hash"
	"net"
	"net/http"
	"sync"
)

// greeting is what the server that speaks first says.
const greeting = "220 hello\n"

// echo answers each line with the same line, and keeps account of all that came in.
type echo struct {
	mu          sync.Mutex
	bytes       int64
	lines       int64
	connections map[string]*connection // by the peer's address, closed ones too
}

// A connection's fields are below echo's lock.
type connection struct {
	conn  net.Conn
	bytes int64
	lines int64
	sum   hash.Hash
	open  bool
}

func (e *echo) serve(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go e.answer(c)
	}
}

// answer reads lines to the end; what comes without a line's end counts, and is answered at the end.
func (e *echo) answer(c net.Conn) {
	defer c.Close()
	entry := &connection{conn: c, sum: sha256.New(), open: true}
	e.add(c.RemoteAddr().String(), entry)
	for in := bufio.NewReaderSize(c, 64<<10); ; {
		line, err := in.ReadSlice('\n')
		e.count(entry, line)
		if len(line) > 0 {
			if _, werr := c.Write(line); werr != nil {
				break
			}
		}
		if err != nil && err != bufio.ErrBufferFull {
			break
		}
	}
	e.mu.Lock()
	entry.open = false
	e.mu.Unlock()
}

// add keeps an earlier connection from the same address under another name.
func (e *echo) add(peer string, entry *connection) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if earlier := e.connections[peer]; earlier != nil {
		e.connections[fmt.Sprintf("%s (%d)", peer, len(e.connections))] = earlier
	}
	e.connections[peer] = entry
}

func (e *echo) count(entry *connection, line []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.bytes += int64(len(line))
	entry.bytes += int64(len(line))
	entry.sum.Write(line)
	if n := len(line); n > 0 && line[n-1] == '\n' {
		e.lines++
		entry.lines++
	}
}

func (e *echo) closeAll() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.connections {
		if c.open {
			c.conn.Close()
		}
	}
}

type echoConnection struct {
	Bytes  int64  `json:"bytes"`
	Lines  int64  `json:"lines"`
	SHA256 string `json:"sha256"`
	Open   bool   `json:"open"`
}

type echoTotal struct {
	Bytes       int64                     `json:"bytes"`
	Lines       int64                     `json:"lines"`
	Connections map[string]echoConnection `json:"connections"`
}

func (e *echo) handle(*http.Request) (any, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	t := echoTotal{e.bytes, e.lines, map[string]echoConnection{}}
	for peer, c := range e.connections {
		t.Connections[peer] = echoConnection{c.bytes, c.lines, hexSum(c.sum), c.open}
	}
	return t, nil
}

// greet says hello to each connection, then answers its lines.
func greet(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			if _, err := fmt.Fprint(c, greeting); err != nil {
				return
			}
			for in := bufio.NewScanner(c); in.Scan(); {
				if _, err := fmt.Fprintln(c, in.Text()); err != nil {
					return
				}
			}
		}()
	}
}

func echoPackets(c net.PacketConn) {
	packet := make([]byte, 64<<10)
	for {
		n, peer, err := c.ReadFrom(packet)
		if err != nil {
			return
		}
		c.WriteTo(packet[:n], peer)
	}
}
