package faults

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Cells of a `runsc create` that is cut short when its sandbox's process is there and nobody knows of it yet: runsc has
// written no state by which `runsc delete` could find it. Only the sweep for strays ends it.

var frozen = failpoint.Rule{Command: "create", Fault: failpoint.Freeze}

// processes are those that were started for the app.
func (a *app) processes() []harness.Process {
	a.Helper()
	all, err := a.w.Processes()
	a.must(err)
	return slices.DeleteFunc(all, func(p harness.Process) bool { return !slices.Contains(p.Argv, a.ID) })
}

// untilFrozen waits until the sandbox's process is there.
func (a *app) untilFrozen() {
	a.Helper()
	a.eventually("there is a sandbox that nobody knows of", func() bool {
		return slices.ContainsFunc(a.processes(), func(p harness.Process) bool { return p.Argv[0] == "runsc-sandbox" })
	})
}

// untilBooted waits until that sandbox has come to the end of its own beginning, as its use of the processor shows: from then on it
// lives without the runsc that has started it.
func (a *app) untilBooted() {
	a.Helper()
	all := a.processes()
	i := slices.IndexFunc(all, func(p harness.Process) bool { return p.Argv[0] == "runsc-sandbox" })
	last, same := "", 0
	a.eventually("the sandbox has booted", func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", all[i].Pid))
		a.must(err)
		f := strings.Fields(string(stat))
		used := f[13] + " " + f[14] + " " + f[19] // ticks in user and kernel mode, threads
		if same++; used != last {
			last, same = used, 0
		}
		return same == 50
	})
}

// nothingRuns waits until all of the app's processes have ended.
func (a *app) nothingRuns() {
	a.Helper()
	var left []harness.Process
	a.eventually("its processes have ended", func() bool { left = a.processes(); return len(left) == 0 })
}

// The shim is killed in the middle of a wake: nothing runs any more, and the snapshot, which is not yet in use, is restored.
func TestStrayOfWake(t *testing.T) {
	t.Parallel()
	a := newLane(t, false, nil).run("stray", nil)
	a.Sleep()
	a.GoesOn()
	a.Awake()
	before := a.inventory()
	a.Sleep()
	a.must(a.runsc.Set(a.ID, frozen))
	go func() { _, _ = a.w.Wake(a.ctx(), a.ID) }() // its shim is killed
	a.untilFrozen()
	a.killShim()
	a.nothingRuns()
	a.must(a.runsc.Set(a.ID))
	a.Again()
	a.GoesOn()
	a.Awake()
	a.sameAs(before)
	ran.cells.Add(1)
	ran.kept.Add(1)
}

// The task is killed in the middle of a wake.
func TestStrayOfKill(t *testing.T) {
	t.Parallel()
	a := newLane(t, false, nil).run("stray", nil)
	a.Sleep()
	a.must(a.runsc.Set(a.ID, frozen))
	go func() { _, _ = a.w.Wake(a.ctx(), a.ID) }() // it is killed
	a.untilFrozen()
	a.untilBooted()
	a.must(a.w.Kill(a.ctx(), a.ID, "KILL"))
	a.stopped("137")
	a.must(a.runsc.Set(a.ID))
	_, _ = a.w.Ctr(a.ctx(), "tasks", "delete", a.ID) // its status is the task's
	a.nothingRuns()
	ran.cells.Add(1)
	ran.lost.Add(1)
}

// The shim is killed in the middle of a container's creation, when nothing but its bundle tells of what there is already.
func TestStrayOfCreate(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	a := l.prepare("stray")
	nothing := a.inventory()
	a.must(a.w.Import(a.ctx(), "testserver"))
	a.must(a.runsc.Set(a.ID, frozen))
	created := make(chan error, 1)
	go func() {
		_, err := a.w.Ctr(a.ctx(), a.w.RunArgs(harness.Container{ID: a.ID, Image: "testserver", NetNS: a.Pod.Path, Detach: true})...)
		created <- err
	}()
	a.untilFrozen()
	pid := slices.IndexFunc(a.processes(), func(p harness.Process) bool { return slices.Contains(p.Argv, "-id") })
	if pid < 0 {
		a.Fatalf("no shim among %v", a.processes())
	}
	a.killPid(a.processes()[pid].Pid)
	if err := <-created; err == nil {
		a.Error("ctr run doesn't tell that the shim has died")
	}
	a.nothingRuns()
	a.must(a.runsc.Set(a.ID))
	a.must(a.w.Remove(a.ctx(), a.ID))
	a.sameAs(nothing)
	ran.cells.Add(1)
	ran.lost.Add(1)
}
