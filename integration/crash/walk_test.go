package crash

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/stepper"
)

// The steps of a transition, in the order in which they are journalled; those of a wake overlap in part.
var (
	toSleep = []string{"begin", "guard", "quiesce", "pause", "checkpoint", "verify", "commit", "free"}
	toWake  = []string{"begin", "choose", "verify", "boot", "inner", "claim", "restore", "open"}
)

// commit is the one step in which either may be: its last rename decides.
const commit = "commit"

// What the state is after a crash of the shim in a step. Nothing else is allowed, since it would be a loss that needn't
// be, or the state of a moment that peers have seen go by.
var (
	keptWhenHibernating = []string{"free"}
	keptWhenWaking      = []string{"begin", "choose", "verify", "boot", "inner", "claim"}
)

// walk begins a transition of an app and stops its shim within a step.
func (a *app) walk(waking bool, name string) *stepper.Stepper {
	a.Helper()
	if waking {
		a.sleep()
	}
	hold := step(a.T, a)
	go func() { // how it ends is not asked here
		if waking {
			_, _ = a.w.Wake(a.ctx(), a.ID)
		} else {
			_, _ = a.w.Sleep(a.ctx(), a.ID) // again, when the end of a connection undoes it
		}
	}()
	hold.Until(name)
	return hold
}

// The shim is killed within each step. `delete` leaves nothing, and the same container starts again: restored when its
// snapshot counts and nothing of it ran since, else afresh, and told.
func TestShimKilledAtEachStep(t *testing.T) {
	for kind, waking := range map[string]bool{"hibernate": false, "wake": true} {
		steps, kept := toSleep, keptWhenHibernating
		if waking {
			steps, kept = toWake, keptWhenWaking
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t, harness.Options{Settings: manual})
			a := start(t, w, kind, options{})
			for _, name := range steps {
				from := int64(len(a.log()))
				hold := a.walk(waking, name)
				r, err := w.Record(a.ID)
				a.must(err)
				a.must(syscall.Kill(r.Pid, syscall.SIGKILL))
				hold.Release()
				a.shimGone()
				if left := a.namespaces(); left != 0 {
					t.Errorf("%s: %d namespaces are left", name, left)
				}
				a.Again()
				outcome, detail := a.lastWake()
				if restored := outcome == "restored"; restored != slices.Contains(kept, name) && name != commit {
					t.Errorf("%s: %s (%s)", name, outcome, detail)
				}
				if outcome == "restored" {
					a.GoesOn()
				} else {
					a.IsNew()
					a.inLog(from, "state is lost")
				}
			}
		})
	}
}

// namespaces counts the inner ones that are pinned.
func (a *app) namespaces() int {
	census, err := a.w.Census(a.ctx())
	a.must(err)
	return len(slices.DeleteFunc(census["netns"], func(path string) bool { return !hasSuffix(path, "/"+a.ID) || hasSuffix(path, a.Pod.Path) }))
}

// SIGKILL within each step ends the task with 137, whatever it is doing.
func TestTaskKilledAtEachStep(t *testing.T) {
	for kind, waking := range map[string]bool{"hibernate": false, "wake": true} {
		steps := toSleep
		if waking {
			steps = toWake
		}
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t, harness.Options{Settings: manual})
			a := start(t, w, kind, options{})
			exit := a.exits()
			for i, name := range steps {
				if i > 0 {
					a.Again()
					a.IsNew()
				}
				hold := a.walk(waking, name)
				killed := make(chan error, 1)
				go func() { killed <- w.Kill(a.ctx(), a.ID, "KILL") }()
				select { // the shim gets it within the step, unless the kill needs the step to end
				case err := <-killed:
					t.Errorf("%s: the kill came back while the shim is held: %v", name, err)
				case <-time.After(150 * time.Millisecond):
				}
				hold.Release()
				a.must(<-killed)
				if e := exit(); e.status != 137 {
					t.Errorf("%s: the status is %d, not 137", name, e.status)
				}
				a.ended()
				a.nothingLeft(name)
			}
			a.Again() // for the orderly end
		})
	}
}

// SIGKILL while runsc makes a sandbox ends runsc in the middle, with no state by which the sandbox could be found again.
func TestTaskKilledWhileBooting(t *testing.T) {
	t.Parallel()
	w := harness.New(t, harness.Options{Settings: manual})
	a := start(t, w, "booting", options{})
	for i := range 12 {
		after := time.Duration(i) * 5 * time.Millisecond
		if i > 0 {
			a.Again()
		}
		a.walk(true, "boot").Release()
		time.Sleep(after) // into runsc's work: where it is then is different each time, and that is wanted
		a.must(w.Kill(a.ctx(), a.ID, "KILL"))
		a.ended()
		a.nothingLeft(after.String())
	}
	a.Again() // for the orderly end
}

// nothingLeft looks for processes, and for snapshots of a container that has ended.
func (a *app) nothingLeft(when string) {
	a.Helper()
	if left := a.processes(); len(left) > 0 {
		a.Errorf("%s: left: %v", when, left)
	}
	census, err := a.w.Census(a.ctx())
	a.must(err)
	for _, f := range census["file"] {
		if inside(f, a.w.Path(a.w.RunDir())) && strings.Contains(f, a.ID) || f == a.tier {
			a.Errorf("%s: left: %s", when, f)
		}
	}
	if a.namespaces() != 0 {
		a.Errorf("%s: the inner namespace is left", when)
	}
}
