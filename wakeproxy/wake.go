package wakeproxy

import (
	"context"
	"crypto/rand"
	"errors"
	"sync"
	"time"
)

// Waker wakes the workload. The proxy calls it once at a time for all ports,
// and for every burst of connections, so it must be quick when the workload is
// awake already.
//
// Wake returns nil when the workload's gate is open: what is dialled reaches
// it. An error that is [ErrPermanent] has the connections that wait refused; any
// other is tried again, for Limits.HoldFor. Wake returns soon after ctx
// ends; the wake itself may go on. The reason is "connection" for a new
// connection and "dial" when a workload believed awake could not be reached.
// [WakeID] of ctx names the wake in logs.
type Waker interface {
	Wake(ctx context.Context, reason string) error
}

// Reasons given to Waker.Wake.
const (
	reasonConnection = "connection"
	reasonDial       = "dial"
)

// ErrPermanent marks a wake that will not succeed when tried again at once.
var ErrPermanent = errors.New("the workload can't be woken")

// Later is implemented by errors of a Waker that know when a client's next try
// has sense.
type Later interface {
	error
	RetryAfter() time.Duration
}

type wakeIDKey struct{}

// WakeID returns the id of the wake that ctx belongs to, or "". It is unique
// enough to find the lines of one wake in the logs of several programs.
func WakeID(ctx context.Context) string {
	id, _ := ctx.Value(wakeIDKey{}).(string)
	return id
}

// flight lets any number of callers share one call of Waker.Wake. Unlike
// singleflight's, a caller may leave early, and the call ends with the last.
type flight struct {
	waker Waker
	woke  func(Woke)

	mu      sync.Mutex // guards current and each call's waiters
	current *call
}

type call struct {
	done    chan struct{}
	err     error // valid after done
	waiters int
	cancel  context.CancelFunc
}

// wake joins the call that is under way, or makes one. It returns the cause of
// ctx when that ends first.
func (f *flight) wake(ctx context.Context, reason string) error {
	c := f.join(ctx, reason)
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		if f.leave(c) {
			<-c.done // nobody else would wait for its goroutine
		}
		return context.Cause(ctx)
	}
}

func (f *flight) join(ctx context.Context, reason string) *call {
	f.mu.Lock()
	defer f.mu.Unlock()
	if c := f.current; c != nil {
		c.waiters++
		return c
	}
	id := rand.Text()[:10]
	ctx, cancel := context.WithCancel(context.WithValue(context.WithoutCancel(ctx), wakeIDKey{}, id))
	c := &call{done: make(chan struct{}), waiters: 1, cancel: cancel}
	f.current = c
	go f.run(ctx, c, reason, id)
	return c
}

func (f *flight) run(ctx context.Context, c *call, reason, id string) {
	defer c.cancel()
	start := time.Now()
	c.err = f.waker.Wake(ctx, reason)
	f.mu.Lock()
	if f.current == c {
		f.current = nil
	}
	waiters := c.waiters
	f.mu.Unlock()
	f.woke(Woke{ID: id, Reason: reason, Took: time.Since(start), Waiters: waiters, Err: c.err})
	close(c.done)
}

// leave reports whether the caller was the last one; the call is cancelled then.
func (f *flight) leave(c *call) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	c.waiters--
	if c.waiters > 0 {
		return false
	}
	c.cancel()
	if f.current == c {
		f.current = nil
	}
	return true
}

// backoff is a pause that doubles from first to last.
type backoff struct{ next, last time.Duration }

// pause waits, or returns the cause of ctx when that ends first.
func (b *backoff) pause(ctx context.Context) error {
	t := time.NewTimer(b.next)
	defer t.Stop()
	b.next = min(2*b.next, b.last)
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
