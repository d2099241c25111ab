package wakeproxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

var errReset = syscall.ECONNRESET

// gate is a Waker's function that waits until it is opened.
type gate struct {
	asked chan string // a wake has begun
	open  chan error  // what it returns
}

func newGate() *gate { return &gate{asked: make(chan string, 100), open: make(chan error)} }

func (g *gate) wake(ctx context.Context, reason string) error {
	g.asked <- reason + " " + WakeID(ctx)
	select {
	case err := <-g.open:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestBurstIsHeldWokenOnceAndServedInFull(t *testing.T) {
	r := newRig(t, echo)
	g := newGate()
	r.waker.wake = g.wake
	const n = 100
	conns := make([]*net.TCPConn, n)
	for i := range conns {
		conns[i] = r.dial()
		fmt.Fprintf(conns[i], "hello %d", i)
		conns[i].CloseWrite()
	}
	r.start()
	if got := <-g.asked; len(got) < len("connection ")+8 || got[:11] != "connection " {
		t.Errorf("the waker was told %q", got)
	}
	if st := r.proxy.Stats(); st.Held != n || st.Active != 0 {
		t.Errorf("while held: %+v", st)
	}
	g.open <- nil
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			if got, err := readAll(c); got != fmt.Sprintf("hello %d", i) || err != nil {
				t.Errorf("client %d got %q, %v", i, got, err)
			}
			addr := c.LocalAddr().(*net.TCPAddr).AddrPort()
			if _, ok := r.dialer.clients.Load(addr); !ok {
				t.Errorf("client %d: the workload was not dialled as %s", i, addr)
			}
		})
	}
	wg.Wait()
	if got := r.waker.calls.Load(); got != 1 {
		t.Errorf("%d wakes", got)
	}
	until(t, "all to be drained", func() bool { return len(r.observer.ends()) == n })
	for _, d := range r.observer.ends() {
		if d.Err != nil || d.In < 7 || d.In != d.Out || d.Port != 80 || d.Dial <= 0 || d.Took < d.Dial {
			t.Errorf("%+v", d)
		}
	}
	if st := r.proxy.Stats(); st.In == 0 || st.In != st.Out || st.Active != 0 || st.Held != 0 {
		t.Errorf("in the end: %+v", st)
	}
	if w := r.observer.woke; len(w) != 1 || w[0].Err != nil || w[0].ID == "" {
		t.Errorf("wakes: %+v", w)
	}
}

func TestServerSpeaksFirst(t *testing.T) {
	r := newRig(t, func(c *net.TCPConn) { io.WriteString(c, "220 ready") })
	r.start()
	c := r.dial()
	if got, err := readAll(c); got != "220 ready" || err != nil {
		t.Errorf("got %q, %v", got, err)
	}
}

func TestStragglersAreServedAtOnce(t *testing.T) {
	r := newRig(t, echo)
	r.start()
	for i := range 20 {
		c := r.dial()
		fmt.Fprint(c, i)
		c.CloseWrite()
		if got, err := readAll(c); got != fmt.Sprint(i) || err != nil {
			t.Fatalf("connection %d: %q, %v", i, got, err)
		}
	}
}

func TestDataFromBeforeTheWakeArrivesIntact(t *testing.T) {
	r := newRig(t, echo)
	g := newGate()
	r.waker.wake = g.wake
	r.start()
	c := r.dial()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var wg sync.WaitGroup
	wg.Go(func() {
		c.Write(data)
		c.CloseWrite()
	})
	<-g.asked
	g.open <- nil
	got, err := io.ReadAll(c)
	if err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d came back, %v", len(got), len(data), err)
	}
	wg.Wait()
}

func TestPortsShareOneWake(t *testing.T) {
	r := newRig(t, echo)
	g := newGate()
	r.waker.wake = g.wake
	r.start()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	conns := []*net.TCPConn{r.dial()}
	for port := range uint16(5) {
		file, front := listenFile(t)
		conns = append(conns, dialTCP(t, front))
		wg.Go(func() { r.proxy.Serve(ctx, file, port) })
	}
	<-g.asked
	until(t, "all ports to hold", func() bool {
		r.observer.mu.Lock()
		defer r.observer.mu.Unlock()
		return r.observer.held == 6
	})
	until(t, "all ports to join", func() bool {
		r.proxy.waker.mu.Lock()
		defer r.proxy.waker.mu.Unlock()
		return r.proxy.waker.current.waiters == 6
	})
	g.open <- nil
	for _, c := range conns {
		c.CloseWrite()
		if _, err := readAll(c); err != nil {
			t.Error(err)
		}
	}
	if got := r.waker.calls.Load(); got != 1 {
		t.Errorf("%d wakes", got)
	}
	cancel()
	wg.Wait()
}

func TestTransientFailureIsTriedAgain(t *testing.T) {
	r := newRig(t, echo)
	r.waker.wake = func(context.Context, string) error {
		if r.waker.calls.Load() < 3 {
			return errors.New("busy")
		}
		return nil
	}
	r.start()
	c := r.dial()
	c.CloseWrite()
	if _, err := readAll(c); err != nil {
		t.Error(err)
	}
	if got := r.waker.calls.Load(); got != 3 {
		t.Errorf("%d wakes", got)
	}
}

func TestFailedWakeResetsAndGoesOn(t *testing.T) {
	for name, failure := range map[string]error{
		"permanent":       fmt.Errorf("corrupt: %w", ErrPermanent),
		"transient, long": errors.New("busy"),
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, echo, func(o *Options) { o.Limits.HoldFor = 500 * time.Millisecond })
			var fail atomic.Bool
			fail.Store(true)
			r.waker.wake = func(context.Context, string) error {
				if fail.Load() {
					return failure
				}
				return nil
			}
			a, b := r.dial(), r.dial()
			r.start()
			for _, c := range []*net.TCPConn{a, b} {
				if _, err := readAll(c); !isReset(err) {
					t.Errorf("got %v, want a reset", err)
				}
			}
			until(t, "both to be told", func() bool { return len(r.observer.ends()) == 2 })
			if d := r.observer.ends()[0]; !errors.Is(d.Err, failure) {
				t.Errorf("told %v", d.Err)
			}
			fail.Store(false)
			c := r.dial()
			c.CloseWrite()
			if _, err := readAll(c); err != nil {
				t.Errorf("after it is healed: %v", err)
			}
		})
	}
}

func TestEndOfServeLeavesTheBacklogToTheNext(t *testing.T) {
	r := newRig(t, echo)
	g := newGate()
	r.waker.wake = g.wake
	var conns []*net.TCPConn
	for range 20 {
		conns = append(conns, r.dial())
	}
	r.start()
	<-g.asked
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	conns = append(conns, r.dial()) // with nobody there
	next := New(Options{Waker: &fakeWaker{}, Dialer: r.dialer})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- next.Serve(ctx, r.file, 80) }()
	for i, c := range conns {
		fmt.Fprint(c, i)
		c.CloseWrite()
		if got, err := readAll(c); got != fmt.Sprint(i) || err != nil {
			t.Errorf("client %d: %q, %v", i, got, err)
		}
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
	next.Shutdown(t.Context())
}

func TestTwoProxiesOfOneListener(t *testing.T) {
	r := newRig(t, echo)
	r.start()
	other := New(Options{Waker: &fakeWaker{}, Dialer: r.dialer})
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- other.Serve(ctx, r.file, 80) }()
	var wg sync.WaitGroup
	for i := range 200 {
		c := r.dial()
		wg.Go(func() {
			fmt.Fprint(c, i)
			c.CloseWrite()
			if got, err := readAll(c); got != fmt.Sprint(i) || err != nil {
				t.Errorf("client %d: %q, %v", i, got, err)
			}
		})
	}
	wg.Wait()
	cancel()
	<-served
	other.Shutdown(t.Context())
}

func TestListenerThatIsShutDown(t *testing.T) {
	r := newRig(t, echo)
	r.start()
	c := r.dial()
	until(t, "the connection to be taken", func() bool { return r.proxy.Active() == 1 })
	raw, _ := r.file.SyscallConn()
	raw.Control(func(fd uintptr) { syscall.Shutdown(int(fd), syscall.SHUT_RD) })
	fmt.Fprint(c, "still here")
	c.CloseWrite()
	if got, err := readAll(c); got != "still here" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if err := <-r.served; !errors.Is(err, ErrNotListening) {
		t.Errorf("got %v", err)
	}
}

func TestServeOfSomethingElse(t *testing.T) {
	p := New(Options{Waker: &fakeWaker{}, Dialer: &fakeDialer{}})
	f, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := p.Serve(t.Context(), f, 1); !errors.Is(err, ErrNotListening) {
		t.Errorf("got %v", err)
	}
	p.Shutdown(t.Context())
	ln, _ := listenFile(t)
	if err := p.Serve(t.Context(), ln, 1); !errors.Is(err, ErrClosed) {
		t.Errorf("after Shutdown: %v", err)
	}
}

func TestLimitsLeaveTheRestInTheBacklog(t *testing.T) {
	limits := map[string]func(*Options, *Node){
		"workload": func(o *Options, _ *Node) { o.Limits.Connections = 3 },
		"node":     func(o *Options, n *Node) { o.Node = n },
	}
	for name, limit := range limits {
		t.Run(name, func(t *testing.T) {
			node := NewNode(3)
			r := newRig(t, echo, func(o *Options) { limit(o, node) })
			t.Cleanup(node.Close)
			var conns []*net.TCPConn
			for range 10 {
				conns = append(conns, r.dial())
			}
			r.start()
			until(t, "the limit", func() bool {
				r.observer.mu.Lock()
				defer r.observer.mu.Unlock()
				return r.observer.limited > 0
			})
			if st := r.proxy.Stats(); st.Active != 3 || st.Held != 7 {
				t.Errorf("%+v", st)
			}
			for i, c := range conns {
				fmt.Fprint(c, i)
				c.CloseWrite()
				if got, err := readAll(c); got != fmt.Sprint(i) || err != nil {
					t.Errorf("client %d: %q, %v", i, got, err)
				}
			}
			until(t, "all slots to be free", func() bool { return r.proxy.admit.workload.inUse()+r.proxy.admit.node.inUse() == 0 })
		})
	}
}

func TestIPv6ClientOfAMappedAddress(t *testing.T) {
	if got := addrPort(&sockaddrMapped); got != netip.MustParseAddrPort("192.0.2.1:80") {
		t.Errorf("got %s", got)
	}
	if got := addrPort(nil); got.IsValid() {
		t.Errorf("got %s", got)
	}
}
