package wakeproxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// busy is an error that knows when to come again.
type busy struct{}

func (busy) Error() string             { return "no room" }
func (busy) RetryAfter() time.Duration { return 6100 * time.Millisecond }
func (busy) Is(target error) bool      { return target == ErrPermanent }

// TestRefusalIsHonest: what is an HTTP/1 request gets a status, everything else a reset.
func TestRefusalIsHonest(t *testing.T) {
	long := "GET /" + strings.Repeat("x", 5000) + " HTTP/1.1\r\nHost: a\r\n\r\n"
	for name, c := range map[string]struct {
		sent   string
		off    bool
		cause  error
		status int
		after  string
	}{
		"GET":                   {sent: "GET / HTTP/1.1\r\nHost: a\r\n\r\n", cause: busy{}, status: 503, after: "7"},
		"HTTP/1.0":              {sent: "POST /a?b HTTP/1.0\n\nbody", cause: busy{}, status: 503, after: "7"},
		"HEAD":                  {sent: "HEAD / HTTP/1.1\r\n\r\n", cause: busy{}, status: 503, after: "7"},
		"long":                  {sent: long, cause: busy{}, status: 503, after: "7"},
		"with much behind it":   {sent: "PUT / HTTP/1.1\r\n\r\n" + strings.Repeat("x", 50_000), cause: busy{}, status: 503, after: "7"},
		"never":                 {sent: "GET / HTTP/1.1\r\n\r\n", cause: fmt.Errorf("blocked: %w", ErrPermanent), status: 503},
		"switched off":          {sent: "GET / HTTP/1.1\r\n\r\n", off: true, cause: busy{}},
		"half a line":           {sent: "GET / HT", cause: busy{}},
		"silent":                {cause: busy{}},
		"TLS":                   {sent: "\x16\x03\x01\x02\x00\x01", cause: busy{}},
		"HTTP/2":                {sent: "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", cause: busy{}},
		"redis":                 {sent: "*1\r\n$4\r\nPING\r\n", cause: busy{}},
		"SMTP, after a fashion": {sent: "EHLO example.test\r\n", cause: busy{}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, echo, func(o *Options) { o.AnswerHTTP = !c.off })
			r.waker.wake = func(context.Context, string) error { return c.cause }
			conn := r.dial()
			io.WriteString(conn, c.sent)
			r.start()
			method, _, _ := strings.Cut(c.sent, " ")
			resp, err := http.ReadResponse(bufio.NewReader(conn), &http.Request{Method: method})
			if c.status == 0 {
				if !isReset(err) {
					t.Fatalf("got %v, %v; want a reset", resp, err)
				}
			} else {
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				if resp.StatusCode != c.status || resp.Header.Get("Retry-After") != c.after || err != nil || (len(body) == 0) != (method == "HEAD") {
					t.Errorf("%v, body %q, %v", resp, body, err)
				}
			}
			conn.Close()
			until(t, "the end to be told", func() bool { return len(r.observer.ends()) == 1 })
			want := map[bool]string{true: RefusedReset, false: RefusedHTTP}[c.status == 0]
			if d := r.observer.ends()[0]; d.Refused != want || !errors.Is(d.Err, c.cause) {
				t.Errorf("told %+v", d)
			}
			if n := r.proxy.Active(); n != 0 {
				t.Errorf("%d active", n)
			}
		})
	}
}

// TestHoldEnds: a waker that doesn't answer costs its clients the time of the hold, not more; the next ones are served.
func TestHoldEnds(t *testing.T) {
	r := newRig(t, echo, func(o *Options) {
		o.LimitsNow = func() Limits { return Limits{HoldFor: 300 * time.Millisecond} }
	})
	var hung atomic.Bool
	hung.Store(true)
	r.waker.wake = func(ctx context.Context, _ string) error {
		if hung.Load() {
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}
	c := r.dial()
	r.start()
	if _, err := readAll(c); !isReset(err) {
		t.Errorf("got %v, want a reset", err)
	}
	until(t, "the end to be told", func() bool { return len(r.observer.ends()) == 1 })
	if d := r.observer.ends()[0]; !errors.Is(d.Err, ErrHeldTooLong) || d.Refused != RefusedReset {
		t.Errorf("told %+v", d)
	}
	hung.Store(false)
	c = r.dial()
	c.CloseWrite()
	if _, err := readAll(c); err != nil {
		t.Error(err)
	}
}

// TestDialThatFailsIsRefused: a client that was accepted, and whose workload can't be reached, is told so likewise.
func TestDialThatFailsIsRefused(t *testing.T) {
	r := newRig(t, echo, func(o *Options) {
		o.AnswerHTTP = true
		o.Limits.DialTimeout = 100 * time.Millisecond
	})
	r.dialer.before = func(context.Context) error { return errors.New("unreachable") }
	r.start()
	conn := r.dial()
	io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
	resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("%v, %v", resp, err)
	}
}

// TestLimitsMayChange: connections that wait for a limit go on when that has grown.
func TestLimitsMayChange(t *testing.T) {
	var limit atomic.Int32
	limit.Store(2)
	s := newSlots(func() int { return int(limit.Load()) })
	for i, want := range []bool{true, true, false} {
		if got := s.try(); got != want {
			t.Fatalf("slot %d: %v", i, got)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.acquire(ended); err == nil {
		t.Fatal("a slot for one who has left")
	}
	got := make(chan error, 2)
	for range 2 {
		go func() { got <- s.acquire(t.Context()) }()
	}
	until(t, "both to wait", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.waiting) == 2
	})
	limit.Store(3)
	s.release()
	for range 2 {
		if err := <-got; err != nil {
			t.Error(err)
		}
	}
	limit.Store(1)
	s.release()
	s.release()
	if s.try() {
		t.Error("a slot beyond a limit that has shrunk")
	}
	s.release()
	if !s.try() || s.inUse() != 1 {
		t.Error("no slot is free")
	}
}
