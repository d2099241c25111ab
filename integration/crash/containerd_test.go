package crash

import (
	"context"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// containerd killed while a container sleeps, and while it wakes: sleeping and waking go on without it, and it finds the
// task running when it is back.
func TestContainerdKilled(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: manual})
	a := start(t, w, "orphan", options{mib: 32})
	old := a.dial()
	a.must(echo(old, "before"))
	task, err := w.Task(a.ctx(), a.ID)
	a.must(err)

	a.sleep()
	a.must(w.Containerd.Kill())
	a.GoesOn()
	a.sleep()
	a.must(echo(old, "without containerd"))
	a.sleep()
	a.back(task)
	if s, err := w.Status(a.ctx(), a.ID); err != nil || s.GetState() != "asleep" {
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
	a.GoesOn()
	a.sleep()
	if out, err := w.Exec(a.ctx(), a.ID, "/testserver", "-h"); err == nil { // its usage is status 2 or 0
		t.Log(out)
	}
	if s, err := w.Status(a.ctx(), a.ID); err != nil || s.GetState() != "awake" || s.GetLastWake().GetReason() != "exec" {
		t.Fatalf("exec: %s, %v, %v", s.GetState(), s.GetLastWake(), err)
	}
	a.GoesOn()
	a.sleep()
	exit := a.exits()
	a.must(w.Kill(a.ctx(), a.ID, "KILL"))
	if e := exit(); e.status != 137 {
		t.Errorf("killed with status %d", e.status)
	}
	a.ended()
}

// A container that ends while containerd is down: its status is told when containerd is back.
func TestExitWhileContainerdIsDown(t *testing.T) {
	w := harness.New(t, harness.Options{Settings: manual})
	for _, c := range []struct {
		name, script string
		asleep       bool
		status       int
	}{
		{"by-itself", "sleep 2; exit 7", false, 7},
		{"killed", "while :; do sleep 1; done", false, 137},
		{"killed-asleep", "while :; do sleep 1; done", true, 137},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			must := func(err error) {
				if t.Helper(); err != nil {
					t.Fatal(err)
				}
			}
			_, err := w.Run(ctx, harness.Container{ID: c.name, Image: "testserver", Detach: true, Flags: []string{"--null-io"},
				Args: []string{"sh", "-c", c.script}})
			must(err)
			task, err := w.Task(ctx, c.name)
			must(err)
			if c.asleep {
				_, err := w.Sleep(ctx, c.name)
				must(err)
			}
			must(w.Containerd.Kill())
			if c.status == 137 {
				must(syscall.Kill(task.Pid, syscall.SIGKILL))
			}
			known.Eventually(t, "the end", func() bool {
				s, err := w.Status(ctx, c.name)
				must(err)
				return s.GetState() == "ended"
			})
			must(w.Containerd.Start(ctx))
			must(w.WaitTask(ctx, c.name, "STOPPED"))
			cmd := w.Command(ctx, "ctr", "--address", w.Address(), "--namespace", w.Name, "tasks", "delete", c.name)
			out, err := cmd.CombinedOutput() // which tells the task's status
			if err != nil || !strings.Contains(string(out), fmt.Sprint("non-zero exit code ", c.status)) {
				t.Errorf("the status is told as %s, %v; want %d", out, err, c.status)
			}
			must(w.Remove(ctx, c.name))
		})
	}
}

// back starts containerd, which must know the task at once.
func (a *app) back(want harness.Task) {
	a.Helper()
	a.must(a.w.Containerd.Start(a.ctx()))
	begin := time.Now()
	got, err := a.w.Task(a.ctx(), a.ID)
	if err != nil || got != want {
		a.Fatalf("containerd is back and tells of %+v, want %+v: %v", got, want, err)
	}
	if out, err := a.w.Ctr(a.ctx(), "tasks", "ps", a.ID); err != nil {
		a.Fatalf("%s: %v", out, err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		a.Errorf("State and Pids took %v", took)
	}
}
