package crash

import (
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// containerd killed while a container sleeps, and while it wakes: sleeping and waking go on without it, and it finds the
// task running when it is back.
func TestContainerdKilled(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: manual})
	a := start(t, w, "orphan", options{mib: 32})
	old := a.dial()
	a.must(echo(old, "before"))
	task, err := w.Task(a.ctx(), a.id)
	a.must(err)

	a.sleep()
	a.must(w.Containerd.Kill())
	a.goesOn()
	a.sleep()
	a.must(echo(old, "without containerd"))
	a.sleep()
	a.back(task)
	if s, err := w.Status(a.ctx(), a.id); err != nil || s.GetState() != "asleep" {
		t.Fatalf("containerd's return woke it: %s, %v", s.GetState(), err)
	}

	hold := step(t, a)
	woken := make(chan error, 1)
	go func() { woken <- echo(old, "while containerd dies") }()
	hold.Until("restore")
	a.must(w.Containerd.Kill())
	hold.Release()
	a.must(<-woken)
	a.back(task)
	a.goesOn()
	a.sleep()
	if out, err := w.Exec(a.ctx(), a.id, "/testserver", "-h"); err == nil { // its usage is status 2 or 0
		t.Log(out)
	}
	if s, err := w.Status(a.ctx(), a.id); err != nil || s.GetState() != "awake" || s.GetLastWake().GetReason() != "exec" {
		t.Fatalf("exec: %s, %v, %v", s.GetState(), s.GetLastWake(), err)
	}
	a.goesOn()
	a.sleep()
	exit := a.exits()
	a.must(w.Kill(a.ctx(), a.id, "KILL"))
	if e := exit(); e.status != 137 {
		t.Errorf("killed with status %d", e.status)
	}
	a.ended()
}

// back starts containerd, which must know the task at once.
func (a *app) back(want harness.Task) {
	a.Helper()
	a.must(a.w.Containerd.Start(a.ctx()))
	begin := time.Now()
	got, err := a.w.Task(a.ctx(), a.id)
	if err != nil || got != want {
		a.Fatalf("containerd is back and tells of %+v, want %+v: %v", got, want, err)
	}
	if out, err := a.w.Ctr(a.ctx(), "tasks", "ps", a.id); err != nil {
		a.Fatalf("%s: %v", out, err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		a.Errorf("State and Pids took %v", took)
	}
}
