package faults

import (
	"fmt"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
)

// Why a wake's data can be lost where the policy is to start cold. The snapshot is set aside then, and told.
const (
	bothFailed = "the policy is to start cold when two tries have failed"
	imageGone  = "the image is not there any more"
	otherRunsc = "no runsc here may restore it"
)

// wakes are the cells of a wake. Where the policy is to block, whatever can't be restored blocks, and nothing is lost.
func wakes(block bool) []cell {
	given := func(c cell, why string) cell {
		if block {
			c.outcome, c.state = "blocked", "blocked"
		} else {
			c.outcome, c.state, c.lost = "cold-started", "awake", why
		}
		return c
	}
	restored := cell{outcome: "restored", state: "awake"}
	at := func(c cell, step string) cell { c.step = step; return c }
	var all []cell
	all = append(all, each("create", 1, at(restored, "boot"))...)
	all = append(all, each("restore", 1, at(restored, "restore"))...)
	all = append(all, each("delete", 1, at(restored, "discard"), failpoint.Rule{Command: "restore", Fault: failpoint.Fail})...)
	all = append(all,
		cell{step: "restore", fault: "restore: cut", outcome: "restored", state: "awake",
			rules: []failpoint.Rule{{Command: "restore", Fault: failpoint.Cut, After: 10 * time.Millisecond}}},
		cell{step: "boot", fault: "create: cut", outcome: "restored", state: "awake",
			rules: []failpoint.Rule{{Command: "create", Fault: failpoint.Cut, After: 15 * time.Millisecond}}},
		cell{step: "boot", fault: "the sandbox dies", outcome: "restored", state: "awake", at: killBooted},
		cell{step: "claim", fault: "the sandbox dies", outcome: "restored", state: "awake", at: signalSandbox(syscall.SIGKILL)},
		cell{step: "restore", fault: "the sandbox dies before it", after: "claim", outcome: "restored", state: "awake",
			at: signalSandbox(syscall.SIGKILL)},
		cell{step: "open", fault: "the sandbox dies", after: "restore", outcome: "restored", told: "137", state: "ended",
			lost: sandboxIsTask, at: signalSandbox(syscall.SIGKILL)},
		cell{step: "end", fault: "the sandbox dies", after: "open", outcome: "restored", told: "137", state: "ended",
			lost: sandboxIsTask, at: signalSandbox(syscall.SIGKILL)},
		cell{step: "ladder", fault: "the sandbox dies before it", outcome: "restored", told: "137", state: "ended",
			lost: sandboxIsTask, later: signalSandbox(syscall.SIGKILL)},
		cell{step: "ladder", fault: "the sandbox dies in it", outcome: "restored", told: "137", state: "ended",
			lost: sandboxIsTask, later: killInLadder},
		cell{step: "restore", fault: "the sandbox stops for a second", outcome: "restored", state: "awake", at: func(a *app) {
			pid := a.Sandbox()
			a.must(syscall.Kill(pid, syscall.SIGSTOP))
			time.AfterFunc(time.Second, func() { _ = syscall.Kill(pid, syscall.SIGCONT) })
		}},
		given(cell{step: "restore", fault: "another version", told: "version", rules: []failpoint.Rule{{
			Command: "restore", Fault: failpoint.Fail, Message: "runsc version does not match across checkpoint restore",
		}}}, otherRunsc),
		given(cell{step: "verify", fault: "ENOENT", told: "pages.img", after: "begin", at: away("[0-9]*/image/pages.img"), mend: back}, imageGone),
		given(cell{step: "verify", fault: "ENOENT of the snapshot", told: "is not there", first: away("[0-9]*"), mend: back}, imageGone),
		given(cell{step: "restore", fault: "ENOENT", told: "pages.img", after: "claim", at: away("[0-9]*/image/pages.img"), mend: back}, imageGone),
	)
	for _, f := range append(early, late...) {
		for _, command := range []string{"create", "restore"} {
			all = append(all, given(cell{
				step: map[string]string{"create": "boot", "restore": "restore"}[command], fault: fmt.Sprintf("%s: %s ×2", command, f),
				told: command, rules: []failpoint.Rule{{Command: command, Fault: f, Times: 2}},
			}, bothFailed))
		}
	}
	return append(all, endings(block)...)
}

// endings are the cells in which a wake can neither restore nor start.
func endings(block bool) []cell {
	if block {
		return []cell{{
			step: "choose", fault: "runsc is gone", outcome: "blocked", told: "cannot be executed", state: "blocked",
			remedy: "the snapshot is kept as it was: when this is mended, hibernatectl wake restores it", at: takeRunsc, mend: putRunsc,
		}}
	}
	const remedy = "the snapshot is kept as it was: when this is mended, start the container again, and it is restored"
	all := []cell{{
		step: "choose", fault: "runsc is gone", outcome: "failed", told: "255", state: "ended", at: takeRunsc, mend: putRunsc,
	}}
	for _, f := range early {
		all = append(all, cell{
			step: "cold-start", fault: fmt.Sprintf("create: %s ×3", f), outcome: "failed", told: "255", state: "ended",
			rules: []failpoint.Rule{{Command: "create", Fault: f, Times: 3}},
		}, cell{
			step: "cold-start", fault: fmt.Sprintf("start: %s", f), outcome: "failed", told: "255", state: "ended",
			rules: []failpoint.Rule{{Command: "restore", Fault: failpoint.Fail, Times: 2}, {Command: "start", Fault: f}},
		})
	}
	for i := range all {
		all[i].remedy = remedy
	}
	return all
}

// killBooted kills the sandbox as soon as there is one.
func killBooted(a *app) {
	a.Helper()
	a.eventually("there is a sandbox", func() bool { return a.Sandbox() != 0 })
	signalSandbox(syscall.SIGKILL)(a)
}

// killInLadder kills the sandbox while the ladder waits for its answer.
func killInLadder(a *app) {
	a.Helper()
	signalSandbox(syscall.SIGSTOP)(a)
	time.Sleep(200 * time.Millisecond) // the ladder begins in that time
	signalSandbox(syscall.SIGKILL)(a)
}

// away takes a file of the snapshots away; back brings it.
func away(pattern string) func(*app) {
	return func(a *app) {
		a.Helper()
		found := a.stored(pattern)
		if len(found) != 1 {
			a.Fatalf("%d files are %s", len(found), pattern)
		}
		a.must(os.RemoveAll(a.w.Path(a.w.Dir) + "/taken")) // of an earlier cell, which could not be put back
		a.taken = found[0]
		a.must(os.Rename(a.taken, a.w.Path(a.w.Dir)+"/taken"))
	}
}

func back(a *app) {
	if _, err := os.Stat(a.taken); err != nil && a.taken != "" {
		_ = os.Rename(a.w.Path(a.w.Dir)+"/taken", a.taken) // its directory may have been set aside
	}
}

func TestWake(t *testing.T) {
	t.Parallel()
	for policy, block := range map[string]bool{"cold": false, "block": true} {
		cells := wakes(block)
		for i, part := range [][]cell{cells[:len(cells)/2], cells[len(cells)/2:]} {
			t.Run(fmt.Sprint(policy, i), func(t *testing.T) {
				t.Parallel()
				l := newLane(t, false, map[string]string{"on-restore-failure": fmt.Sprintf("%q", policy)})
				l.run("sleeper", nil).walk(toWake, part)
			})
		}
	}
}
