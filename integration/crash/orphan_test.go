package crash

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// held has the daemon hold what a dead shim left for longer than any machine takes to start a container again.
var held = settings("orphan-hold", `"5m"`)

func settings(key, value string) map[string]string {
	all := maps.Clone(manual)
	all[key] = value
	return all
}

// inBacklog are the clients whose handshake is done when the shim dies.
const inBacklog = 50

// The shim is killed while clients wait in the backlog, and others come all the time until the container has been started
// again: nobody is refused or reset, and all are answered, by the old state where that was on the disk. Where it was not, the
// container begins anew, and refuses who comes before its server listens, as any does; not those who waited.
func TestShimKilledWithClients(t *testing.T) {
	for name, c := range map[string]struct {
		step string // of the wake in which it is killed; "" asleep
		kept bool   // the state
	}{
		"asleep":              {"", true},
		"in a wake":           {"boot", true},
		"in a wake, restored": {"restore", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t, harness.Options{Daemon: true, Settings: held})
			a := start(t, w, "held", options{})
			a.sleep()
			shim, err := w.Record(a.ID)
			a.must(err)
			if c.step == "" { // it can't answer whom it is asked to wake for
				a.must(syscall.Kill(shim.Pid, syscall.SIGSTOP))
			} else {
				hold := step(t, a)
				defer hold.Release()
				defer func() { _ = syscall.Kill(shim.Pid, syscall.SIGKILL) }() // or it would go on when the test fails
				waiting := a.dial()
				defer waiting.Close()
				hold.Until(c.step)
			}
			backlog := a.wait(inBacklog)
			late := a.come(2 * time.Millisecond)
			late.until(20)
			a.killShim()
			late.until(late.count() + 20)
			again := time.Now()
			late.allow = func(v visit) bool { return !c.kept && v.refusedAfter(again) }
			a.Again()
			late.until(late.count() + 20)
			a.must(late.end())
			for i, client := range backlog {
				if err := hear(client, fmt.Sprintf("early %d", i)); err != nil {
					t.Fatalf("client %d of the backlog: %v", i, err)
				}
			}
			if c.kept {
				a.GoesOn()
			} else {
				a.IsNew()
			}
			for i, client := range backlog { // what was held goes on to be served
				if err := echo(client, fmt.Sprint("again ", i)); err != nil {
					t.Fatalf("client %d, later: %v", i, err)
				}
				client.Close()
			}
			a.sleep() // the daemon and the new shim share the sockets: it can be held again
			if s, err := w.Status(a.ctx(), a.ID); err != nil || s.GetGate() != "held" {
				t.Fatalf("the gate is %s, not held: %v", s.GetGate(), err)
			}
			a.must(echo(a.dial(), "to a sleeper"))
		})
	}
}

// The shim of an awake container is killed: what its sandbox had accepted is lost with it, everybody who comes later waits for
// the new one.
func TestShimKilledAwakeWithClients(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: held})
	a := start(t, w, "awake", options{})
	a.sleep()
	spliced := a.dial() // by the daemon, since it slept
	a.must(echo(spliced, "before"))
	a.GoesOn()
	late := a.come(5 * time.Millisecond)
	late.until(20)
	a.killShim()
	gone := time.Now()
	late.until(late.count() + 20)
	backlog := a.wait(inBacklog)
	again := time.Now()
	a.Again()
	for i, client := range backlog {
		if err := hear(client, fmt.Sprintf("early %d", i)); err != nil {
			t.Fatalf("client %d of the backlog: %v", i, err)
		}
		client.Close()
	}
	late.allow = func(v visit) bool {
		lost := !v.connected.IsZero() && v.connected.Before(gone) && errors.Is(v.err, syscall.ECONNRESET)
		return lost || v.refusedAfter(again)
	}
	late.until(late.count() + 20)
	a.must(late.end())
	if err := hear(spliced, "anything"); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection of the lost sandbox ends with %v, not a reset", err)
	}
	a.IsNew()
	a.sleep()
	a.GoesOn()
}

// wait connects n clients, each with a line, that nobody has answered yet.
func (a *app) wait(n int) []net.Conn {
	a.Helper()
	clients := make([]net.Conn, n)
	for i := range clients {
		clients[i] = a.dial()
		_, err := fmt.Fprintf(clients[i], "early %d\n", i)
		a.must(err)
	}
	return clients
}

// stream is clients that come one after the other until its end, each with a line that wants an answer.
type stream struct {
	a     *app
	allow func(visit) bool // which failures are none
	stop  context.CancelFunc
	all   sync.WaitGroup

	mu     sync.Mutex
	begun  int     // guarded by mu
	visits []visit // guarded by mu; that failed
}

type visit struct {
	n         int
	connected time.Time // zero: not at all
	failed    time.Time
	err       error
}

func (v visit) refusedAfter(t time.Time) bool {
	return errors.Is(v.err, syscall.ECONNREFUSED) && v.failed.After(t)
}

func (a *app) come(every time.Duration) *stream {
	ctx, stop := context.WithCancel(context.Background())
	s := &stream{a: a, stop: stop, allow: func(visit) bool { return false }}
	a.Cleanup(func() { stop(); s.all.Wait() })
	s.all.Go(func() {
		for tick := time.NewTicker(every); ctx.Err() == nil; <-tick.C {
			s.mu.Lock()
			s.begun++
			n := s.begun
			s.mu.Unlock()
			s.all.Go(func() { s.visit(n) })
		}
	})
	return s
}

func (s *stream) visit(n int) {
	v := visit{n: n}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := s.a.w.Dial(ctx, "tcp", s.a.Address(7000))
	if v.err = err; err == nil {
		v.connected = time.Now()
		v.err = echo(c, fmt.Sprint("late ", n))
		c.Close()
	}
	if v.err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		v.failed = time.Now()
		s.visits = append(s.visits, v)
	}
}

func (s *stream) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.begun
}

// until waits until so many have come.
func (s *stream) until(n int) {
	s.a.Helper()
	known.Eventually(s.a.T, fmt.Sprint(n, " visitors"), func() bool { return s.count() >= n })
}

// end waits for the answers.
func (s *stream) end() error {
	s.stop()
	s.all.Wait()
	var errs []error
	for _, v := range s.visits {
		if !s.allow(v) {
			errs = append(errs, fmt.Errorf("visitor %d of %d, connected at %v: %w", v.n, s.begun, v.connected, v.err))
		}
	}
	return errors.Join(errs...)
}

// A container that is killed on purpose resets who waits for it and who is served, whatever is held for those of a shim that
// died.
func TestKilledOnPurposeResets(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: held})
	for name, kill := range map[string]func(a *app){
		"kill":   func(a *app) { a.must(w.Kill(a.ctx(), a.ID, "KILL")) },
		"delete": func(a *app) { a.tool("tasks", "delete", "--force", a.ID) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, w, name, options{})
			a.sleep()
			spliced := a.dial() // by the daemon, since it slept
			a.must(echo(spliced, "before"))
			a.sleep()
			a.tool("tasks", "pause", a.ID) // a paused sleeper is not woken: clients wait
			clients := append(a.wait(inBacklog), spliced)
			kill(a)
			for i, c := range clients {
				if err := hear(c, "anything"); !errors.Is(err, syscall.ECONNRESET) {
					t.Fatalf("client %d: %v, not a reset", i, err)
				}
			}
		})
	}
}

func (a *app) tool(args ...string) {
	a.Helper()
	_, err := a.w.Ctr(a.ctx(), args...)
	a.must(err)
}

// What is held for a shim that died is let go with the pod's network, and nobody keeps that alive.
func TestShimKilledAndPodRemoved(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: held})
	a := &app{T: t, w: w}
	open, err := harness.Descriptors(w.Daemon.Pid())
	a.must(err)
	pod, err := w.NewPod(a.ctx(), "pod")
	a.must(err)
	a.Server = known.New(t, w, "pod", pod)
	a.start(options{})
	a.sleep()
	shim, err := w.Record(a.ID)
	a.must(err)
	a.must(syscall.Kill(shim.Pid, syscall.SIGSTOP))
	clients := a.wait(5)
	a.killShim()
	a.must(w.RemovePod(a.ctx(), a.Pod))
	for i, c := range clients {
		if err := hear(c, "anything"); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("client %d: %v, not a reset", i, err)
		}
	}
	a.must(os.RemoveAll(a.tier)) // a sleeper's, which nobody starts again
	known.Eventually(t, "the network is gone", func() bool {
		links, err := w.Output(a.ctx(), "ip", "-o", "-brief", "link", "show", "master", "plain0")
		a.must(err)
		return strings.TrimSpace(links) == ""
	})
	known.Eventually(t, "the daemon has no more open than before", func() bool {
		now, err := harness.Descriptors(w.Daemon.Pid())
		a.must(err)
		return now <= open
	})
}
