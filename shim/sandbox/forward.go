package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Who is in the pod's namespace reaches the container by a loopback address, as containerd's port-forward does, or by the
// pod's own. There the sandbox is not: its loopback is its own. The shim takes such connections, wakes it and passes them
// on: over the link, where the server listens on the pod's address or on all, and such a connection outlives sleep as any
// other; else by a process inside that dials the sandbox's loopback, and such a connection is like an exec.

const (
	// byForward is the reason of a wake by a connection from inside the pod's namespace.
	byForward = "port-forward"
	// mostForwards and mostInside bound the connections that are passed on at the same time, the latter those that need a
	// process; more wait.
	mostForwards, mostInside = 1024, 32
	// insideEnds is how long a process that dialled the loopback may take to end, before it is killed.
	insideEnds = 5 * time.Second
	// lookEvery is how often it is asked whether such a connection's client is still there: one that has closed and one that
	// has ended its half say the same. It is taken for gone when it was so often, with nothing passed on meanwhile.
	lookEvery, goneLooks = 10 * time.Second, 3
)

// visitors are connections that the shim takes itself, and passes on.
type visitors struct {
	listeners []*os.File
	proxy     *wakeproxy.Proxy
	cancel    context.CancelFunc
	serving   sync.WaitGroup
}

// begin has each listener served, until stop.
func (v *visitors) begin(listeners []*os.File, log *slog.Logger, serve func(context.Context, *os.File) error) {
	v.listeners = listeners
	var ctx context.Context
	ctx, v.cancel = context.WithCancel(context.Background())
	for _, ln := range listeners {
		v.serving.Go(func() {
			if err := serve(ctx, ln); err != nil && ctx.Err() == nil && !errors.Is(err, wakeproxy.ErrClosed) {
				log.Error("connections that the shim takes itself are not served", "error", err)
			}
		})
	}
}

// stop resets what is left. It may be called on none.
func (v *visitors) stop() {
	if v == nil {
		return
	}
	v.cancel()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = v.proxy.Shutdown(now) // its error is that connections were reset
	v.serving.Wait()
	for _, ln := range v.listeners {
		_ = ln.Close()
	}
}

// forwarding passes on what comes from inside the pod's namespace.
type forwarding struct {
	visitors
	w     *Workload
	slots chan struct{} // one for each process
	// As the constants; abandoned tells whether a client's socket is nobody's any more.
	insideEnds, lookEvery time.Duration
	abandoned             func(client netip.AddrPort, to netip.AddrPort) bool

	mu     sync.Mutex // guards the fields below
	inside map[*insideConn]struct{}
	moved  int64     // bytes, when last looked
	used   time.Time // when that was seen to have grown, or a connection was made
}

// insideConn is a connection to the sandbox's loopback.
type insideConn struct {
	*runsc.Inside
	once, ending sync.Once
	closed       chan struct{} // by the proxy
}

// Close implements net.Conn.
func (c *insideConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Inside.Close()
}

// startForwarding begins to take connections from inside the pod's namespace. Without them all else works, so a kernel that
// can't redirect them is told and no more.
func (w *Workload) startForwarding(ctx context.Context) {
	if w.link == nil {
		return
	}
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.removed || w.forward != nil {
		return
	}
	listeners, err := w.link.ListenLocal(ctx)
	if err != nil {
		w.opts.Log.Warn("connections from inside the pod, as port-forward makes, are refused", "error", err)
		return
	}
	f := newForwarding(w)
	f.begin(listeners, w.opts.Log, func(ctx context.Context, ln *os.File) error { return f.proxy.Serve(ctx, ln, 0) })
	if !w.whileRunning(func() { w.forward = f }) { // stopVisitors may have come before
		f.stop()
	}
}

func newForwarding(w *Workload) *forwarding {
	f := &forwarding{
		w: w, slots: make(chan struct{}, mostInside), inside: map[*insideConn]struct{}{}, insideEnds: insideEnds, lookEvery: lookEvery,
		abandoned: func(client, to netip.AddrPort) bool {
			gone, err := network.Abandoned(w.podNS, client, to) // one that can't be asked for may be there
			return err == nil && gone
		},
	}
	hold := w.config.HoldTimeout
	f.proxy = wakeproxy.New(wakeproxy.Options{
		Waker: f, Dialer: f, Grace: wakeproxy.Unlimited, Log: w.opts.Log,
		Limits: wakeproxy.Limits{Connections: mostForwards, HoldFor: hold, DialTimeout: hold, RefusedFor: time.Nanosecond},
	})
	return f
}

// whileRunning calls do with w.mu held, unless the container has ended.
func (w *Workload) whileRunning(do func()) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.root().state == lifecycle.Stopped {
		return false
	}
	do()
	return true
}

// Wake implements wakeproxy.Waker.
func (f *forwarding) Wake(ctx context.Context, _ string) error {
	_, err := f.w.Wake(ctx, byForward, "")
	return final(err)
}

// final marks an error of a wake that will not go away by trying again.
func final(err error) error {
	var illegal *lifecycle.IllegalError
	if errors.Is(err, ErrBlocked) || errors.As(err, &illegal) {
		return fmt.Errorf("%w: %w", wakeproxy.ErrPermanent, err)
	}
	return err
}

// Dial implements wakeproxy.Dialer. A client that comes from a loopback address has dialled one of the same family, and one
// that comes from the pod's the pod's; a server that listens by the other only is found, too.
func (f *forwarding) Dial(ctx context.Context, client netip.AddrPort, port uint16) (net.Conn, error) {
	target, err := netip.ParseAddr(f.w.address())
	if err != nil {
		return nil, err
	}
	for _, as := range f.w.link.LocalClients(client.Addr()) {
		var conn net.Conn
		if conn, err = network.Dial(ctx, f.w.podNS, as, netip.AddrPortFrom(target, port)); err == nil {
			return conn, nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, err
		}
	}
	if !errors.Is(err, syscall.ECONNREFUSED) || !client.Addr().IsLoopback() {
		return nil, err
	}
	loopback := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	if client.Addr().Is6() {
		loopback = netip.IPv6Loopback()
	}
	return f.dialInside(ctx, client, netip.AddrPortFrom(loopback, port))
}

// dialInside has a process in the sandbox dial. It is counted before the workload could sleep, until it has ended.
func (f *forwarding) dialInside(ctx context.Context, client, to netip.AddrPort) (net.Conn, error) {
	select {
	case f.slots <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	c, err := f.enter(ctx, to)
	if err != nil {
		<-f.slots
		return nil, err
	}
	go func() {
		f.attend(c, client, to)
		f.mu.Lock()
		delete(f.inside, c)
		f.mu.Unlock()
		<-f.slots
	}()
	return c, nil
}

// attend returns when the connection's process inside has ended, or was made to: soon after the proxy has closed the connection, or
// its client is there no more.
func (f *forwarding) attend(c *insideConn, client, to netip.AddrPort) {
	look := time.NewTicker(f.lookEvery)
	defer look.Stop()
	gone, moved := 0, int64(0)
	for {
		select {
		case <-c.Done:
			return
		case <-c.closed:
			f.end(c)
			return
		case <-look.C:
			if now := f.passed(); now != moved || !f.abandoned(client, to) {
				gone, moved = 0, now
				continue
			}
			if gone++; gone == goneLooks {
				f.end(c)
				return
			}
		}
	}
}

// end hangs up, and kills the process inside if that doesn't end by itself.
func (f *forwarding) end(c *insideConn) { c.ending.Do(func() { f.endNow(c) }) }

func (f *forwarding) endNow(c *insideConn) {
	c.hangUp()
	patience := time.NewTimer(f.insideEnds)
	defer patience.Stop()
	select {
	case <-c.Done:
		return
	case <-patience.C:
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	f.w.opts.Log.Warn("the process of a port-forward is killed: its connection has ended, and it has not")
	if err := c.End(ctx); err != nil {
		f.w.opts.Log.Warn("the process of a port-forward can't be killed", "error", err)
	}
}

func (f *forwarding) enter(ctx context.Context, to netip.AddrPort) (*insideConn, error) {
	release, err := f.w.hold(ctx, byForward)
	if err != nil {
		return nil, err
	}
	defer release()
	helper, err := os.Open(f.w.helper)
	if err != nil {
		return nil, err
	}
	defer helper.Close()
	conn, err := f.w.runsc.Dial(ctx, f.w.opts.ID, helper, to)
	if err != nil {
		return nil, err
	}
	c := &insideConn{Inside: conn, closed: make(chan struct{})}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.inside[c] = struct{}{}
	f.used = f.w.opts.Now()
	return c, nil
}

// busy counts the connections to the sandbox's loopback, unless nothing has passed through any for so long; with 0 they
// count however silent they are. It may be called on none.
func (f *forwarding) busy(now time.Time, silence time.Duration) int {
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.inside) == 0 {
		return 0
	}
	if passed := f.passed(); passed != f.moved {
		f.moved, f.used = passed, now
	}
	if silence > 0 && now.Sub(f.used) >= silence {
		return 0
	}
	return len(f.inside)
}

// passed is how many bytes were passed on, both ways, by all connections.
func (f *forwarding) passed() int64 {
	stats := f.proxy.Stats()
	return stats.In + stats.Out
}

// endInside ends the connections to the sandbox's loopback, whose processes don't survive a restore, and returns when those
// are gone or given up. It may be called on none.
func (f *forwarding) endInside(ctx context.Context) error {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	ending := make([]*insideConn, 0, len(f.inside))
	for c := range f.inside {
		ending = append(ending, c)
	}
	f.mu.Unlock()
	var all sync.WaitGroup
	for _, c := range ending {
		all.Go(func() { f.end(c) })
	}
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// hangUp ends both ways. The proxy, which closes the connection, finds out by itself.
func (c *insideConn) hangUp() {
	raw, err := c.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
}

// stopVisitors takes no more connections that the shim passes on itself, and resets those that are left.
func (w *Workload) stopVisitors() {
	w.mu.Lock()
	f, p := w.forward, w.probing
	w.mu.Unlock()
	if f != nil {
		f.stop()
	}
	p.stop()
}
