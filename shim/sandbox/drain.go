package sandbox

import (
	"context"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// drainAfter is how long handshakes in the backlog wait for a new daemon before the shim serves them itself.
const drainAfter = 2 * time.Second

// drainer serves the listeners' backlogs in place of a daemon that has gone.
type drainer struct {
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// startDraining wakes the workload when somebody waits, and serves whoever waits once no daemon came.
func (w *Workload) startDraining() {
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.drain != nil || w.link == nil || len(w.listeners) == 0 {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	d := &drainer{cancel: cancel}
	w.drain = d
	if w.passing == nil {
		// A connection that it has accepted stays with it when a daemon comes.
		w.passing = wakeproxy.New(wakeproxy.Options{
			Waker: waker{w}, Dialer: dialer{w}, Grace: wakeproxy.Unlimited, Log: w.opts.Log,
		})
	}
	proxy, waiting := w.passing, false
	for port, f := range w.listeners {
		waiting = waiting || readable(f)
		d.done.Go(func() { w.serveLater(ctx, proxy, f, port) })
	}
	if waiting {
		go w.packet(ctx)
	}
}

func (w *Workload) serveLater(ctx context.Context, proxy *wakeproxy.Proxy, f *os.File, port uint16) {
	select {
	case <-ctx.Done():
		return
	case <-time.After(drainAfter):
	}
	if err := proxy.Serve(ctx, f, port); err != nil && ctx.Err() == nil {
		w.opts.Log.Error("serve held connections without a daemon", "port", port, "error", err)
	}
}

// stopDraining leaves the listeners to a daemon that has come. Connections under way are carried on.
func (w *Workload) stopDraining() {
	w.gateMu.Lock()
	d := w.drain
	w.drain = nil
	w.gateMu.Unlock()
	if d != nil {
		d.cancel()
	}
}

// dropPassed resets the connections that were passed on without a daemon: their other end is gone.
func (w *Workload) dropPassed() {
	w.gateMu.Lock()
	passing := w.passing
	w.passing = nil
	w.gateMu.Unlock()
	if passing == nil {
		return
	}
	now, cancel := context.WithCancel(context.Background())
	cancel()
	_ = passing.Shutdown(now) // its error is that some were reset
}

func readable(f *os.File) bool {
	conn, err := f.SyscallConn()
	if err != nil {
		return false
	}
	ready := false
	_ = conn.Control(func(fd uintptr) {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, 0)
		ready = err == nil && n > 0
	})
	return ready
}

// waker and dialer are the workload as wakeproxy sees it.
type waker struct{ w *Workload }

func (a waker) Wake(ctx context.Context, why string) error {
	_, err := a.w.Wake(ctx, why, "")
	return final(err)
}

type dialer struct{ w *Workload }

func (a dialer) Dial(ctx context.Context, client netip.AddrPort, port uint16) (net.Conn, error) {
	target, err := netip.ParseAddr(a.w.address())
	if err != nil {
		return nil, err
	}
	return network.Dial(ctx, a.w.podNS, client, netip.AddrPortFrom(target, port))
}
