// Package cycles has real programs sleep and wake again and again, and looks whether their state went on.
package cycles

import (
	"context"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const cycles = 3

// Each cycle is: traffic, sleep, wake by a new connection, traffic, sleep, wake by an established one, traffic.
func TestCycles(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})
	for _, p := range []program{redis, nginx, python, testserver} {
		t.Run(p.image, func(t *testing.T) { cycle(t, w, p) })
	}
}

func cycle(t *testing.T, w *harness.World, p program) {
	s := start(t, w, p)
	old := s.dial(t)
	check := func() {}
	if p.extra != nil {
		check = p.extra(t, s)
	}
	if p.image != "python3" {
		p.ask(t, old)
	}
	for i := range cycles {
		sleep(t, s)
		fresh := s.dial(t)
		p.ask(t, fresh)
		woken(t, s, "connection", 2*i+1)
		p.ask(t, s.dial(t))
		check()
		sleep(t, s)
		if p.image == "python3" && i > 0 { // its old connection was used up
			old = nil
		}
		askOld(t, s, old)
		woken(t, s, "packet", 2*i+2)
		p.ask(t, s.dial(t))
		check()
	}
	if err := w.Remove(context.Background(), s.id); err != nil {
		t.Fatal(err)
	}
}

// askOld asks over the connection that has been open all along. One that its server has closed is replaced by a
// datagram-like wake: a request by the shim's own service.
func askOld(t *testing.T, s *server, old *conn) {
	t.Helper()
	if old != nil {
		s.ask(t, old)
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	if _, err := s.world.Wake(ctx, s.id); err != nil {
		t.Fatal(err)
	}
}

// sleep puts the workload to sleep and looks that nothing of its sandbox is left.
func sleep(t *testing.T, s *server) {
	t.Helper()
	s.http.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	done, err := s.world.Sleep(ctx, s.id)
	if err != nil {
		t.Fatal(err)
	}
	if done.GetOutcome() != "slept" {
		t.Fatalf("hibernation: %s (%s)", done.GetOutcome(), done.GetDetail())
	}
	m, err := s.world.Memory(ctx, s.id)
	if err != nil {
		t.Fatal(err)
	}
	if m.Processes != 0 {
		t.Fatalf("%d processes of the sandbox run while it sleeps", m.Processes)
	}
}

// woken looks that the newest wake restored, and which kind of traffic it was.
func woken(t *testing.T, s *server, reason string, wakes int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	status, err := s.world.WaitState(ctx, s.id, "awake")
	if err != nil {
		t.Fatal(err)
	}
	last := status.GetLastWake()
	if last.GetOutcome() != "restored" || status.GetWakes() != uint64(wakes) {
		t.Fatalf("wake %d of %d: %s by %s (%s)", status.GetWakes(), wakes, last.GetOutcome(), last.GetReason(), last.GetDetail())
	}
	if s.image != "python3" && last.GetReason() != reason {
		t.Fatalf("woken by %s, want %s", last.GetReason(), reason)
	}
	for _, rung := range last.GetLadder() {
		if !rung.GetOk() || rung.GetRepaired() {
			t.Errorf("rung %s: ok %v, repaired %v: %s", rung.GetName(), rung.GetOk(), rung.GetRepaired(), rung.GetDetail())
		}
	}
}
