package wakeproxy

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// fakeProbes takes requests of one path, and clients that close without a word, for probes.
type fakeProbes struct {
	health Health
	away   atomic.Bool
	asked  atomic.Int32
	probe  func(Question) bool // instead
}

func (p *fakeProbes) Away() (Health, bool) { return p.health, p.away.Load() }

func (p *fakeProbes) Probe(q Question) bool {
	p.asked.Add(1)
	if p.probe != nil {
		return p.probe(q)
	}
	return q.Closed || q.Path == "/health" && q.UserAgent == "prober/1"
}

// lookRig is a rig whose listener's clients may be probes of a workload that is away. They are looked at for long, or for a
// moment.
func lookRig(t *testing.T, lookFor time.Duration, state string, well bool, handle func(*net.TCPConn)) (*rig, *fakeProbes) {
	t.Helper()
	r := newRig(t, handle, func(o *Options) { o.LookFor = lookFor })
	p := &fakeProbes{health: Health{State: state, Well: well}}
	p.away.Store(true)
	r.waker.wake = func(context.Context, string) error { p.away.Store(false); return nil }
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- r.proxy.ServeProbes(ctx, r.file, 80, p) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		shut, done := context.WithTimeout(context.Background(), 10*time.Second)
		defer done()
		if err := r.proxy.Shutdown(shut); err != nil {
			t.Error(err)
		}
	})
	return r, p
}

const (
	long, moment = 15 * time.Second, 20 * time.Millisecond

	probeOf = "GET /health?full=1 HTTP/1.1\r\nHost: 10.0.0.2:80\r\nuser-agent: prober/1\r\nConnection: close\r\n\r\n"
	request = "GET /health HTTP/1.1\r\nHost: 10.0.0.2:80\r\nUser-Agent: somebody\r\n\r\n"
)

// A probe is answered by the state of the workload, and wakes nothing.
func TestProbesAreAnsweredWithoutAWake(t *testing.T) {
	for state, c := range map[string]struct {
		well   bool
		status string
	}{"asleep": {true, "200 OK"}, "blocked": {false, "503 Service Unavailable"}} {
		t.Run(state, func(t *testing.T) {
			r, _ := lookRig(t, long, state, c.well, echo)
			for _, method := range []string{"GET", "HEAD"} {
				client := r.dial()
				if _, err := io.WriteString(client, method+strings.TrimPrefix(probeOf, "GET")); err != nil {
					t.Fatal(err)
				}
				got, err := readAll(client)
				if err != nil || !strings.HasPrefix(got, "HTTP/1.1 "+c.status+"\r\n") || !strings.Contains(got, "\r\nHibernate-State: "+state+"\r\n") {
					t.Errorf("%s: %q, %v", method, got, err)
				}
				if _, body, _ := strings.Cut(got, "\r\n\r\n"); (body == "") != (method == "HEAD") {
					t.Errorf("%s: the body is %q", method, body)
				}
			}
			if n := r.waker.calls.Load(); n != 0 {
				t.Errorf("%d wakes", n)
			}
		})
	}
}

// So is one that connects and closes.
func TestConnectAndCloseWakesNothing(t *testing.T) {
	r, p := lookRig(t, long, "asleep", true, echo)
	r.dial().Close()
	reset := r.dial()
	if err := reset.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	reset.Close()
	for begin := time.Now(); p.asked.Load() < 2 || r.proxy.Active() > 0; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("%d were looked at, %d are served", p.asked.Load(), r.proxy.Active())
		}
	}
	if n := r.waker.calls.Load(); n != 0 {
		t.Errorf("%d wakes", n)
	}
}

// All else wakes, and is passed on whole.
func TestWhatIsNoProbeWakes(t *testing.T) {
	for name, text := range map[string]string{
		"a request of somebody else's": request, "no HTTP": "\x16\x03\x01 hello", "words": "EHLO there\r\n", "half a head": "GET /health HTTP/1.1\r\nUser-Agent: prober/1\r\n",
		"another path": strings.Replace(probeOf, "/health", "/healthy", 1),
	} {
		t.Run(name, func(t *testing.T) {
			limit := long
			if name == "half a head" {
				limit = moment
			}
			r, _ := lookRig(t, limit, "asleep", true, echo)
			c := r.dial()
			if _, err := io.WriteString(c, text); err != nil {
				t.Fatal(err)
			}
			got := make([]byte, len(text))
			if n, err := io.ReadFull(c, got); err != nil || string(got) != text {
				t.Errorf("%q came back, %v", got[:n], err)
			}
			if n := r.waker.calls.Load(); n != 1 {
				t.Errorf("%d wakes", n)
			}
		})
	}
}

// A client that waits for the server to speak wakes it.
func TestServerThatSpeaksFirstIsWokenForProbesToo(t *testing.T) {
	r, _ := lookRig(t, moment, "asleep", true, func(c *net.TCPConn) { io.WriteString(c, "220 ready\n") })
	if got, err := readAll(r.dial()); err != nil || got != "220 ready\n" {
		t.Errorf("%q, %v", got, err)
	}
}

// An awake workload answers for itself, and nobody looks.
func TestAnAwakeWorkloadAnswersProbes(t *testing.T) {
	r, p := lookRig(t, long, "asleep", true, echo)
	p.away.Store(false)
	c := r.dial()
	if _, err := io.WriteString(c, probeOf); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, len(probeOf))
	if _, err := io.ReadFull(c, got); err != nil || string(got) != probeOf {
		t.Errorf("%q came back, %v", got, err)
	}
	if p.asked.Load() != 0 {
		t.Error("somebody looked at it")
	}
}

// Whoever is no probe of a workload that doesn't wake is refused.
func TestNoProbeOfABlockedWorkloadIsRefused(t *testing.T) {
	r, _ := lookRig(t, long, "blocked", false, echo)
	r.waker.wake = func(context.Context, string) error { return ErrPermanent }
	c := r.dial()
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(c); !errors.Is(err, errReset) {
		t.Errorf("%q, %v: not reset", got, err)
	}
}
