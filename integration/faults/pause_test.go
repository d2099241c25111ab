package faults

import (
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
)

// The cells of a user's pause and resume, cut half-way. A pause comes to be or is taken back; a resume is tried again. What
// can be neither is told as paused, and can be resumed later.

// always is as often as anybody tries.
const always = 1000

type pauseCell struct {
	verb  string
	rules []failpoint.Rule
	fails bool   // the verb
	state string // of the task afterwards
}

func (c pauseCell) name() string {
	n := c.verb
	for _, r := range c.rules {
		n += fmt.Sprintf(", %s: %s", r.Command, r.Fault)
		if r.Times > 1 {
			n += " ×many"
		}
	}
	return n
}

func pauseCells() []pauseCell {
	var all []pauseCell
	for _, f := range append(append([]failpoint.Fault{}, early...), late...) {
		all = append(all,
			pauseCell{"pause", []failpoint.Rule{{Command: "pause", Fault: f}}, true, "RUNNING"},
			pauseCell{"pause", []failpoint.Rule{{Command: "pause", Fault: f}, {Command: "resume", Fault: f}}, true, "RUNNING"},
			pauseCell{"resume", []failpoint.Rule{{Command: "resume", Fault: f}}, false, "RUNNING"})
	}
	cut := func(command string) failpoint.Rule {
		return failpoint.Rule{Command: command, Fault: failpoint.Cut, After: 15 * time.Millisecond}
	}
	return append(all,
		pauseCell{"pause", []failpoint.Rule{{Command: "pause", Fault: failpoint.Unnoted}}, true, "RUNNING"},
		pauseCell{"resume", []failpoint.Rule{{Command: "resume", Fault: failpoint.Unnoted}}, false, "RUNNING"},
		pauseCell{"pause", []failpoint.Rule{cut("pause")}, true, "RUNNING"},
		pauseCell{"resume", []failpoint.Rule{cut("resume")}, false, "RUNNING"},
		pauseCell{"pause", []failpoint.Rule{{Command: "pause", Fault: failpoint.LateFail}, {Command: "resume", Fault: failpoint.Fail, Times: always}}, true, "PAUSED"},
		pauseCell{"resume", []failpoint.Rule{{Command: "resume", Fault: failpoint.Fail, Times: always}}, true, "PAUSED"})
}

func TestPause(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	a := l.run("paused", nil)
	a.Sleep()
	a.GoesOn()
	a.Awake()
	a.verb("pause", true)
	a.verb("resume", true)
	before, open := a.inventory(), a.Descriptors()
	for _, c := range pauseCells() {
		t.Run(c.name(), func(t *testing.T) {
			l.T = t
			defer func() { l.T = l.home }()
			if c.verb == "resume" {
				a.verb("pause", true)
			}
			a.must(a.runsc.Set(a.ID, c.rules...))
			a.verb(c.verb, !c.fails)
			task, err := a.w.Task(a.ctx(), a.ID)
			a.must(err)
			if task.State != c.state {
				a.Errorf("the task is %s, want %s", task.State, c.state)
			}
			if n, err := a.runsc.Hits(a.ID); err != nil || n < len(c.rules) {
				a.Errorf("%d faults have happened: %v", n, err)
			}
			a.must(a.runsc.Set(a.ID))
			if task.State == "PAUSED" {
				a.verb("resume", true)
			}
			a.GoesOn()
			ran.cells.Add(1)
			ran.kept.Add(1)
			a.sameAs(before)
			a.noMoreOpen(open)
		})
	}
}

// The shim is killed while runsc pauses or resumes: nothing is left, and the container starts afresh.
func TestPauseShimKilled(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	a := l.run("pausing", nil)
	a.Sleep()
	a.GoesOn()
	a.Awake()
	before := a.inventory()
	for _, verb := range []string{"pause", "resume"} {
		for _, f := range []failpoint.Fault{failpoint.Hang, failpoint.LateHang} {
			t.Run(fmt.Sprintf("%s: %s", verb, f), func(t *testing.T) {
				l.T = t
				defer func() { l.T = l.home }()
				if verb == "resume" {
					a.verb("pause", true)
				}
				a.must(a.runsc.Set(a.ID, failpoint.Rule{Command: verb, Fault: f}))
				done := make(chan struct{})
				go func() {
					defer close(done)
					_, _ = a.w.Ctr(a.ctx(), "tasks", verb, a.ID) // its shim is gone
				}()
				a.eventually("runsc hangs", func() bool { n, _ := a.runsc.Hits(a.ID); return n == 1 })
				a.killShim()
				<-done
				a.must(a.runsc.Set(a.ID))
				a.Again()
				a.IsNew()
				ran.cells.Add(1)
				ran.lost.Add(1) // the shim's death is the end of an awake container
				a.Sleep()
				a.GoesOn()
				a.Awake()
				a.sameAs(before)
			})
		}
	}
}

// killShim ends the shim as a crash does, and waits until containerd has cleaned up.
func (a *app) killShim() {
	a.Helper()
	a.killPid(a.Shim())
	a.must(a.w.WaitTask(a.ctx(), a.ID, ""))
}

// killPid kills a process and waits until it is gone.
func (l *lane) killPid(pid int) {
	l.Helper()
	l.must(syscall.Kill(pid, syscall.SIGKILL))
	l.eventually("it is gone", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}
