package faults

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
)

// The faults of a call.
var (
	early = []failpoint.Fault{failpoint.Fail, failpoint.Hang, failpoint.Die}
	late  = []failpoint.Fault{failpoint.LateFail, failpoint.LateHang, failpoint.LateDie}
)

// each makes a cell for each fault of one command, with what must come of it in c. others are rules beside it.
func each(command string, times int, c cell, others ...failpoint.Rule) []cell {
	var out []cell
	for _, faults := range [][]failpoint.Fault{early, late} {
		for _, f := range faults {
			one := c
			one.fault = fmt.Sprintf("%s: %s", command, f)
			if times > 1 {
				one.fault += fmt.Sprintf(" ×%d", times)
			}
			one.rules = append([]failpoint.Rule{{Command: command, Fault: f, Times: times}}, others...)
			out = append(out, one)
		}
	}
	return out
}

const sandboxIsTask = "a sandbox that dies is the end of its container's processes"

// hibernations are the cells of a hibernation.
func hibernations() []cell {
	undone := func(step, told string) cell {
		return cell{step: step, told: told, outcome: "failed", state: "awake"}
	}
	var all []cell
	all = append(all, cell{
		step: "guard", fault: "runsc is gone", outcome: "failed", told: "cannot be executed", state: "awake",
		at: takeRunsc, mend: putRunsc, twice: true,
	})
	all = append(all, each("exec", 1, undone("quiesce", "listening ports"))...)
	all = append(all, each("pause", 1, undone("pause", "pause"))...)
	all = append(all, each("checkpoint", 1, undone("checkpoint", "checkpoint"))...)
	all = append(all, cell{
		step: "checkpoint", fault: "checkpoint: cut", outcome: "failed", told: "checkpoint", state: "awake",
		rules: []failpoint.Rule{{Command: "checkpoint", Fault: failpoint.Cut, After: 15 * time.Millisecond}},
	}, cell{
		step: "checkpoint", fault: "the sandbox stops answering", outcome: "failed", told: "in time", state: "awake",
		at: func(a *app) {
			pid := a.Sandbox()
			a.must(syscall.Kill(pid, syscall.SIGSTOP))
			time.AfterFunc(3*time.Second, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		},
	})
	all = append(all, each("resume", 1, undone("undo", "checkpoint"), failpoint.Rule{Command: "checkpoint", Fault: failpoint.Fail})...)
	all = append(all,
		cell{step: "verify", fault: "ENOENT", outcome: "failed", told: "not there", state: "awake", after: "checkpoint", at: func(a *app) {
			for _, f := range a.stored("incoming/image/*") {
				a.must(os.Remove(f))
			}
		}},
		cell{step: "verify", fault: "short", outcome: "failed", told: "pages.img", state: "awake", after: "checkpoint", at: func(a *app) {
			for _, f := range a.stored("incoming/image/pages.img") {
				a.must(os.Truncate(f, 4096))
			}
		}},
		cell{step: "commit", fault: "ENOENT", outcome: "failed", told: "no such file", state: "awake", after: "verify", at: func(a *app) {
			for _, f := range a.stored("incoming") {
				a.must(os.RemoveAll(f))
			}
		}},
	)
	all = append(all, each("delete", 1, cell{step: "free", outcome: "slept", state: "asleep"})...)
	steps := []string{"begin", "guard", "quiesce", "pause", "checkpoint", "verify", "commit"}
	for i, step := range steps[1:] {
		all = append(all, cell{
			step: step, fault: "the sandbox dies", outcome: "aborted or failed", told: "137", state: "ended", lost: sandboxIsTask,
			after: steps[i], at: signalSandbox(syscall.SIGKILL),
		})
	}
	return append(all, cell{
		step: "free", fault: "the sandbox dies", outcome: "slept", state: "asleep", after: "commit", at: signalSandbox(syscall.SIGKILL),
	})
}

// takeRunsc makes runsc not be there; putRunsc brings it back.
func takeRunsc(a *app) { a.must(os.Rename(a.runsc.Binary(), a.runsc.Binary()+".away")) }
func putRunsc(a *app)  { a.must(os.Rename(a.runsc.Binary()+".away", a.runsc.Binary())) }

func TestHibernate(t *testing.T) {
	t.Parallel()
	cells := hibernations()
	for i, part := range [][]cell{cells[:len(cells)/2], cells[len(cells)/2:]} {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			l := newLane(t, false, nil)
			l.run("sleeper", nil).walk(toSleep, part)
		})
	}
}
