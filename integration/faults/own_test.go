package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// What a workload has of its own around its sleep: hooks, and files of the host's.

const ownTimeout = "4s" // of hooks

// outside is the directory that an app has beside its snapshot.
func (a *app) outside() string { return filepath.Join(a.w.Dir, a.ID+"-outside") }

// runOwn starts an app with hooks that do nothing, and a directory of the host's.
func (l *lane) runOwn(id string) *app {
	l.Helper()
	a := l.prepare(id)
	a.must(os.Mkdir(a.outside(), 0o755))
	a.must(os.WriteFile(filepath.Join(a.outside(), "data"), []byte("of the host's"), 0o644))
	a.Start(harness.Container{
		Annotations: map[string]string{"hook-before-sleep": "/bin/true", "hook-after-wake": "/bin/true", "hook-timeout": ownTimeout},
		Flags:       []string{"--null-io", "--mount", "type=bind,src=" + a.outside() + ",dst=/outside,options=rbind:rw"},
	}, 4)
	return a
}

func takeOutside(a *app) { a.must(os.Rename(a.outside(), a.outside()+".away")) }
func putOutside(a *app)  { a.must(os.Rename(a.outside()+".away", a.outside())) }

// ownHibernations are the cells of the steps hook and volumes. The first exec of a hibernation asks for the ports, the second is the hook.
func ownHibernations() (all []cell) {
	for _, f := range append(append([]failpoint.Fault{}, early...), late...) {
		all = append(all, cell{
			step: "hook", fault: fmt.Sprintf("exec: %s", f), outcome: "failed", told: "hook-before-sleep", state: "awake",
			rules: []failpoint.Rule{{Command: "exec", Skip: 1, Fault: f}},
		}, cell{
			step: "hook", fault: fmt.Sprintf("exec for the ports: %s", f), outcome: "failed", told: "listening ports", state: "awake",
			rules: []failpoint.Rule{{Command: "exec", Fault: f}},
		})
	}
	return append(all,
		cell{step: "hook", fault: "the sandbox dies", after: "guard", outcome: "aborted or failed", told: "137", state: "ended", lost: sandboxIsTask,
			at: signalSandbox(syscall.SIGKILL)},
		cell{step: "volumes", fault: "the source is gone", after: "checkpoint", outcome: "failed", told: "the mount /outside", state: "awake",
			at: takeOutside, mend: putOutside},
		cell{step: "volumes", fault: "the sandbox dies", after: "checkpoint", outcome: "aborted or failed", told: "137", state: "ended",
			lost: sandboxIsTask, at: signalSandbox(syscall.SIGKILL)},
	)
}

// ownWakes: nothing is lost by a hook, or a mount, whatever the policy.
func ownWakes() (all []cell) {
	for _, f := range append(append([]failpoint.Fault{}, early...), late...) {
		all = append(all, cell{
			step: "hook", fault: fmt.Sprintf("exec: %s", f), outcome: "blocked", told: "hook-after-wake", state: "blocked",
			remedy: "the snapshot is kept as it was: when this is mended, hibernatectl wake restores it",
			rules:  []failpoint.Rule{{Command: "exec", Fault: f}},
		})
	}
	return append(all,
		cell{step: "hook", fault: "the sandbox dies", after: "restore", outcome: "restored", told: "137", state: "ended", lost: sandboxIsTask,
			at: signalSandbox(syscall.SIGKILL)},
		cell{step: "volumes", fault: "the source is gone", first: takeOutside, mend: putOutside, outcome: "blocked", told: "the mount /outside", state: "blocked",
			remedy: "mount or make it as it was"},
	)
}

func TestHooksAndVolumes(t *testing.T) {
	t.Parallel()
	for kind, cells := range map[string][]cell{toSleep: ownHibernations(), toWake: ownWakes()} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			newLane(t, false, nil).runOwn("own").walk(kind, cells)
		})
	}
}
