// Package wire is a way from a world to somewhere else that a test can cut, or hold up: an address on the world's loopback.
package wire

import (
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// dialWithin bounds the connection to the other end.
const dialWithin = 10 * time.Second

// A Wire passes connections on. Its methods may be called from several goroutines.
type Wire struct {
	Address string // host:port, in the world

	listener net.Listener
	serving  sync.WaitGroup

	mu    sync.Mutex // guards the fields below
	dial  func() (net.Conn, error)
	cut   bool
	held  chan struct{} // closed when what is held up goes on; nil: nothing is held up
	conns []net.Conn
	left  int    // bytes that come back until then is called
	then  func() // once; nil: nothing is
}

// Dialer connects to an address of this process's network.
func Dialer(address string) func() (net.Conn, error) {
	return func() (net.Conn, error) { return net.DialTimeout("tcp", address, dialWithin) }
}

// New listens in the world's network until Close. Connections are passed on to what dial gives.
func New(w *harness.World, dial func() (net.Conn, error)) (*Wire, error) {
	return At(w, "127.0.0.1:0", dial)
}

// At is New at an address.
func At(w *harness.World, address string, dial func() (net.Conn, error)) (*Wire, error) {
	r := &Wire{dial: dial}
	err := ns.WithNetNSPath(w.NodeNetNS(), func(ns.NetNS) (err error) { // a socket stays in the namespace of the thread that made it
		r.listener, err = net.Listen("tcp", address)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("wire: %w", err)
	}
	r.Address = r.listener.Addr().String()
	r.serving.Go(func() {
		for {
			c, err := r.listener.Accept()
			if err != nil {
				return
			}
			r.serving.Go(func() { r.serve(c) })
		}
	})
	return r, nil
}

// Close ends the wire, with all that it passes on.
func (r *Wire) Close() {
	_ = r.listener.Close()
	r.Hold(false)
	r.Cut(true)
	r.serving.Wait()
}

// Cut ends all connections, and takes no new ones; or mends the wire.
func (r *Wire) Cut(cut bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cut = cut
	if cut {
		for _, c := range r.conns {
			_ = c.Close()
		}
		r.conns = nil
	}
}

// Hold keeps what is sent on the way, as a network does that drops packets; or has it go on, to arrive late.
func (r *Wire) Hold(hold bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case hold && r.held == nil:
		r.held = make(chan struct{})
	case !hold && r.held != nil:
		close(r.held)
		r.held = nil
	}
}

// Leads has the wire lead somewhere else. It returns the way back.
func (r *Wire) Leads(dial func() (net.Conn, error)) (back func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before := r.dial
	r.dial = dial
	return func() { r.Leads(before) }
}

// After has then be called once so many bytes have come back, which wait for that.
func (r *Wire) After(bytes int, then func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.left, r.then = bytes, then
}

// came counts bytes that come back.
func (r *Wire) came(n int) {
	r.mu.Lock()
	then := r.then
	if r.left -= n; then == nil || r.left > 0 {
		r.mu.Unlock()
		return
	}
	r.then = nil
	r.mu.Unlock()
	then()
}

// wait returns once nothing is held up.
func (r *Wire) wait() {
	for {
		r.mu.Lock()
		held := r.held
		r.mu.Unlock()
		if held == nil {
			return
		}
		<-held
	}
}

func (r *Wire) serve(c net.Conn) {
	defer c.Close()
	r.wait()
	r.mu.Lock()
	cut, dial := r.cut, r.dial
	r.mu.Unlock()
	if cut {
		return
	}
	server, err := dial()
	if err != nil {
		return
	}
	defer server.Close()
	r.mu.Lock()
	cut = r.cut
	r.conns = append(r.conns, c, server)
	r.mu.Unlock()
	if cut {
		return
	}
	done := make(chan struct{})
	go func() { defer close(done); r.copyAll(server, c, func(int) {}) }()
	r.copyAll(c, server, r.came)
	<-done
	r.mu.Lock()
	defer r.mu.Unlock()
	r.conns = slices.DeleteFunc(r.conns, func(o net.Conn) bool { return o == c || o == server })
}

// copyAll copies until one of them is closed, and closes both.
func (r *Wire) copyAll(to, from net.Conn, came func(int)) {
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		r.wait()
		if n > 0 {
			came(n)
			if _, werr := to.Write(buffer[:n]); werr != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	_ = to.Close()
	_ = from.Close()
}
