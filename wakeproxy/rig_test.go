package wakeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// rig is a proxy between a listener, whose backlog fills, and a server.
type rig struct {
	t        *testing.T
	proxy    *Proxy
	waker    *fakeWaker
	dialer   *fakeDialer
	observer *recorder
	file     *os.File // the listener to serve
	front    string   // where clients dial

	cancel context.CancelFunc
	served chan error
}

// fakeWaker runs a function and counts.
type fakeWaker struct {
	calls atomic.Int32
	wake  func(ctx context.Context, reason string) error
}

func (w *fakeWaker) Wake(ctx context.Context, reason string) error {
	w.calls.Add(1)
	if w.wake == nil {
		return nil
	}
	return w.wake(ctx, reason)
}

// fakeDialer dials a server wherever it is.
type fakeDialer struct {
	addr    string
	before  func(ctx context.Context) error
	clients sync.Map      // netip.AddrPort of each client → struct{}
	port    atomic.Uint32 // dialled last
}

func (d *fakeDialer) Dial(ctx context.Context, client netip.AddrPort, port uint16) (net.Conn, error) {
	d.port.Store(uint32(port))
	d.clients.Store(client, struct{}{})
	if d.before != nil {
		if err := d.before(ctx); err != nil {
			return nil, err
		}
	}
	var nd net.Dialer
	return nd.DialContext(ctx, "tcp", d.addr)
}

// recorder keeps what an Observer is told.
type recorder struct {
	mu       sync.Mutex
	held     int
	limited  int
	accepted int
	woke     []Woke
	drained  []Drained
}

func (r *recorder) Held(uint16)                     { r.note(func() { r.held++ }) }
func (r *recorder) Limited(uint16)                  { r.note(func() { r.limited++ }) }
func (r *recorder) Accepted(uint16, netip.AddrPort) { r.note(func() { r.accepted++ }) }
func (r *recorder) Woke(w Woke)                     { r.note(func() { r.woke = append(r.woke, w) }) }
func (r *recorder) Drained(d Drained)               { r.note(func() { r.drained = append(r.drained, d) }) }

func (r *recorder) note(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *recorder) ends() []Drained {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Drained(nil), r.drained...)
}

// newRig prepares a proxy in front of a server that runs handle for each
// connection. Nothing is served before start.
func newRig(t *testing.T, handle func(*net.TCPConn), configure ...func(*Options)) *rig {
	t.Helper()
	noLeaks(t)
	back := serveTCP(t, handle)
	r := &rig{t: t, waker: &fakeWaker{}, dialer: &fakeDialer{addr: back}, observer: &recorder{}}
	o := Options{Waker: r.waker, Dialer: r.dialer, Observer: r.observer, Grace: 5 * time.Second}
	for _, f := range configure {
		f(&o)
	}
	r.proxy = New(o)
	r.file, r.front = listenFile(t)
	return r
}

// listenFile returns a listening socket whose backlog nobody accepts from.
func listenFile(t *testing.T) (*os.File, string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	f, err := ln.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, ln.Addr().String()
}

// serveTCP runs handle for each connection, which it closes, until the test's
// end.
func serveTCP(t *testing.T, handle func(*net.TCPConn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		ln.Close()
		wg.Wait()
	})
	return ln.Addr().String()
}

// start serves the listener until stop, or the end of the test.
func (r *rig) start() {
	var ctx context.Context
	ctx, r.cancel = context.WithCancel(context.Background())
	r.served = make(chan error, 1)
	go func() { r.served <- r.proxy.Serve(ctx, r.file, 80) }()
	r.t.Cleanup(func() {
		r.cancel()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := r.proxy.Shutdown(ctx); err != nil {
			r.t.Errorf("shutdown: %v", err)
		}
	})
}

// stop ends Serve and returns its error.
func (r *rig) stop() error {
	r.cancel()
	return <-r.served
}

func (r *rig) dial() *net.TCPConn {
	r.t.Helper()
	return dialTCP(r.t, r.front)
}

func dialTCP(t *testing.T, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.DialTimeout("tcp", addr, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(20 * time.Second))
	return c.(*net.TCPConn)
}

// readAll returns what comes until the end, and its error.
func readAll(c net.Conn) (string, error) {
	data, err := io.ReadAll(c)
	return string(data), err
}

// echo sends back what comes, then ends. (Two TCPConns would be spliced by
// io.Copy, with pipes that only the garbage collector closes.)
func echo(c *net.TCPConn) {
	io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
}

// until polls a condition.
func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !cond(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// noLeaks fails the test when goroutines of this package or descriptors are
// left at its end.
func noLeaks(t *testing.T) {
	t.Helper()
	fds := openFDs(t)
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		until(t, "descriptors to be closed", func() bool { return openFDs(t) <= fds })
		until(t, "goroutines to end", func() bool { return !strings.Contains(stacks(), "wakeproxy.(*") })
	})
}

func openFDs(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func stacks() string {
	buf := make([]byte, 1<<20)
	return string(buf[:runtime.Stack(buf, true)])
}

// isReset reports whether a connection ended by RST.
func isReset(err error) bool {
	return err != nil && errors.Is(err, errReset)
}
