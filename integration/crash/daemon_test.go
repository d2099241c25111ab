package crash

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

const (
	backlog = 100 // clients whose handshake is done when the daemon dies
	others  = 50  // that come before, in that moment and after it
)

// The daemon killed while clients wait in the backlog of a sleeper and others come: all of them are answered, whether or
// not another daemon is started.
func TestDaemonKilledAsleep(t *testing.T) {
	for name, another := range map[string]bool{"no other": false, "another": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t, harness.Options{Daemon: true, Settings: manual})
			a := start(t, w, "held", options{})
			a.sleep()
			if s, err := w.Status(a.ctx(), a.ID); err != nil || s.GetGate() != "held" {
				t.Fatalf("the gate is %s, not held: %v", s.GetGate(), err)
			}
			a.must(syscall.Kill(w.Daemon.Pid(), syscall.SIGSTOP)) // nobody accepts from here on
			waiting := make([]net.Conn, backlog)
			for i := range waiting {
				waiting[i] = a.dial()
				_, err := fmt.Fprintf(waiting[i], "early %d\n", i)
				a.must(err)
			}
			came, late := a.visitors(others)
			for range others / 3 {
				<-came
			}
			a.must(w.Daemon.Kill())
			if another {
				a.must(w.Daemon.Start(a.ctx()))
			}
			for i, c := range waiting {
				if err := hear(c, fmt.Sprintf("early %d", i)); err != nil {
					t.Fatalf("client %d of the backlog: %v", i, err)
				}
			}
			a.must(late())
			a.GoesOn()
			if s, err := w.Status(a.ctx(), a.ID); err != nil || s.GetWakes() != 1 || s.GetLastWake().GetOutcome() != "restored" {
				t.Fatalf("%d wakes, the last %v: %v", s.GetWakes(), s.GetLastWake(), err)
			}
			for i, c := range waiting { // what was held goes on to be served
				if err := echo(c, fmt.Sprintf("again %d", i)); err != nil {
					t.Fatalf("client %d, later: %v", i, err)
				}
				c.Close()
			}
			a.sleep()
			a.GoesOn()
		})
	}
}

// visitors has n clients come one after the other, 2 ms apart, each with a line. came tells of each connection that is
// made; wait waits for their answers.
func (a *app) visitors(n int) (came <-chan struct{}, wait func() error) {
	made := make(chan struct{}, n)
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			time.Sleep(time.Duration(i) * 2 * time.Millisecond)
			c, err := a.w.Dial(a.ctx(), "tcp", a.Address(7000))
			if err != nil {
				errs[i] = fmt.Errorf("visitor %d: %w", i, err)
				return
			}
			defer c.Close()
			made <- struct{}{}
			if err := echo(c, fmt.Sprint("late ", i)); err != nil {
				errs[i] = fmt.Errorf("visitor %d: %w", i, err)
			}
		})
	}
	return made, func() error { all.Wait(); return errors.Join(errs...) }
}

// Without a daemon nothing is held: connections are parked, and still wake.
func TestDaemonKilledThenConnected(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: manual})
	a := start(t, w, "parked", options{})
	old := a.dial()
	a.must(echo(old, "before"))
	a.sleep()
	open := a.Descriptors()
	a.must(w.Daemon.Kill())
	known.Eventually(t, "the gate parks", func() bool {
		s, err := w.Status(a.ctx(), a.ID)
		return err == nil && s.GetGate() == "parked"
	})
	_, parked := a.visitors(5)
	a.must(parked())
	a.must(echo(old, "after"))
	a.sleep()
	a.must(w.Daemon.Start(a.ctx()))
	known.Eventually(t, "the gate holds again", func() bool {
		s, err := w.Status(a.ctx(), a.ID)
		return err == nil && s.GetGate() == "held"
	})
	known.Eventually(t, "the shim has no more open than before", func() bool { return a.Descriptors() <= open })
	a.GoesOn()
}
