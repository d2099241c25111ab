package shimtest

import (
	"net"
	"sync"
)

// listener remembers its connections: a ttrpc server that is closed leaves those with a stream open.
type listener struct {
	net.Listener

	mu     sync.Mutex
	conns  []net.Conn // guarded by mu
	closed bool       // guarded by mu
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		_ = conn.Close()
	}
	l.conns = append(l.conns, conn)
	return conn, nil
}

// kill closes everything, as the end of the process would.
func (l *listener) kill() {
	_ = l.Listener.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	for _, conn := range l.conns {
		_ = conn.Close()
	}
}
