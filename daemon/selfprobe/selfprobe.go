// Package selfprobe has the daemon be its own client: a connection is held, its wake is asked for, it is accepted, dialled on and
// passed through, and its bytes are counted, by the same code that serves workloads. What is broken in the process or in the
// kernel below it (descriptors, the poller, splicing) is seen before somebody complains.
package selfprobe

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Options of a Prober. The zero value of a field means its default.
type Options struct {
	// Every is the time between two probes, default 30 s; Timeout bounds each, default 10 s.
	Every, Timeout time.Duration
	// Failures in a row that make the path broken. Default 2: one may be a busy machine's.
	Failures int
	// Told is told of each probe.
	Told func(error)
	// Probe does one. Default: Once.
	Probe func(context.Context) error
	Log   *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.Every <= 0 {
		o.Every = 30 * time.Second
	}
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	if o.Failures <= 0 {
		o.Failures = 2
	}
	if o.Told == nil {
		o.Told = func(error) {}
	}
	if o.Probe == nil {
		o.Probe = Once
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Prober probes again and again.
type Prober struct {
	opts   Options
	broken atomic.Pointer[error]
}

// New returns a prober that has found nothing broken.
func New(o Options) *Prober { return &Prober{opts: o.withDefaults()} }

// Err is nil, or why the path is broken.
func (p *Prober) Err() error {
	if err := p.broken.Load(); err != nil {
		return *err
	}
	return nil
}

// Run probes until ctx ends.
func (p *Prober) Run(ctx context.Context) {
	ticker := time.NewTicker(p.opts.Every)
	defer ticker.Stop()
	for failures := 0; ctx.Err() == nil; { // when a tick and the end have both come, select takes either
		err := p.probe(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if p.broken.Swap(nil) != nil {
				p.opts.Log.Info("the daemon's own path works again")
			}
			failures = 0
		default:
			failures++
			if failures >= p.opts.Failures && p.broken.Swap(&err) == nil {
				p.opts.Log.Error("the daemon's own path is broken: connections may not be served", "error", err)
			}
		}
		p.opts.Told(err)
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (p *Prober) probe(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, p.opts.Timeout)
	defer cancel()
	return p.opts.Probe(ctx)
}

// Once is one probe. It leaves nothing behind.
func Once(ctx context.Context) (err error) {
	back, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listen as the workload: %w", err)
	}
	var work sync.WaitGroup
	defer work.Wait()
	defer back.Close()
	work.Go(func() { echo(ctx, back) })
	front, address, err := listen()
	if err != nil {
		return err
	}
	defer front.Close()
	w := &workload{address: back.Addr().String(), ended: make(chan wakeproxy.Drained, 1)}
	proxy := wakeproxy.New(wakeproxy.Options{Waker: w, Dialer: w, Observer: w})
	defer func() {
		now, cancel := context.WithCancel(ctx)
		cancel()
		_ = proxy.Shutdown(now) // its error is that the connection was reset
	}()
	served, stop := context.WithCancel(ctx)
	defer stop()
	work.Go(func() { _ = proxy.Serve(served, front, 1) }) // why it failed shows in what the client sees
	if err := talk(ctx, address); err != nil {
		return err
	}
	select {
	case d := <-w.ended:
		return judge(w.wakes.Load(), d, proxy.Stats())
	case <-ctx.Done():
		return fmt.Errorf("the connection doesn't end: %w", ctx.Err())
	}
}

// wordLen is the length of what the probe says, and wants to hear.
const wordLen = 32

func judge(wakes int32, d wakeproxy.Drained, stats wakeproxy.Stats) error {
	switch {
	case d.Err != nil:
		return fmt.Errorf("the connection doesn't end in order: %w", d.Err)
	case wakes == 0:
		return errors.New("the connection was served without a wake")
	case stats.In != wordLen || stats.Out != wordLen:
		return fmt.Errorf("%d bytes were passed each way, and %d and %d counted", wordLen, stats.In, stats.Out)
	}
	return nil
}

// listen makes a socket that only waits.
func listen() (file *os.File, address string, err error) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		return nil, "", fmt.Errorf("listen as the gate: %w", err)
	}
	defer l.Close()
	if file, err = l.File(); err != nil {
		return nil, "", fmt.Errorf("hand over the listening socket: %w", err)
	}
	return file, l.Addr().String(), nil
}

// talk is the client.
func talk(ctx context.Context, address string) error {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until)
	word := []byte(rand.Text() + rand.Text())[:wordLen]
	if _, err := conn.Write(word); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	answer := make([]byte, len(word))
	if _, err := io.ReadFull(conn, answer); err != nil {
		return fmt.Errorf("no answer: %w", err)
	}
	if string(answer) != string(word) {
		return errors.New("the answer is another's")
	}
	return conn.(*net.TCPConn).CloseWrite()
}

// echo serves one connection.
func echo(ctx context.Context, l net.Listener) {
	conn, err := l.Accept()
	if err != nil {
		return
	}
	defer conn.Close()
	until, _ := ctx.Deadline()
	_ = conn.SetDeadline(until)
	word := make([]byte, wordLen)
	if _, err := io.ReadFull(conn, word); err == nil {
		_, _ = conn.Write(word)
	}
}

// workload is one that "wakes" at once.
type workload struct {
	address string
	wakes   atomic.Int32
	ended   chan wakeproxy.Drained
}

// Held implements wakeproxy.Observer, as the following do.
func (w *workload) Held(uint16)                     {}
func (w *workload) Woke(wakeproxy.Woke)             {}
func (w *workload) Accepted(uint16, netip.AddrPort) {}
func (w *workload) Limited(uint16)                  {}

// Drained is told of strangers' connections, too: the port is everybody's.
func (w *workload) Drained(d wakeproxy.Drained) {
	select {
	case w.ended <- d:
	default:
	}
}

// Wake implements wakeproxy.Waker.
func (w *workload) Wake(context.Context, string) error {
	w.wakes.Add(1)
	return nil
}

// Dial implements wakeproxy.Dialer.
func (w *workload) Dial(ctx context.Context, _ netip.AddrPort, _ uint16) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", w.address)
}
