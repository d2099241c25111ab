package drain

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

// boot ends all that runs, and starts the node's programs anew. before is called when nothing runs yet.
func (n *node) boot(inOrder bool, before func()) {
	n.t.Helper()
	if inOrder { // the unit hibernate-shutdown, then the others
		n.ctl(0, "drain", "--force", "--until-boot")
		n.must(n.Daemon.Stop(n.context()))
		n.must(n.Containerd.Stop(n.context()))
	}
	n.must(n.Reboot(n.context(), inOrder))
	if left, err := n.Processes(); err != nil || len(left) > 0 {
		n.t.Fatalf("they outlive the machine: %v, %v", left, err)
	}
	before()
	n.must(n.Containerd.Start(n.context()))
	n.must(n.Daemon.Start(n.context()))
}

// woke looks how a server's container was started.
func (n *node) woke(s *known.Server, outcome string, words ...string) {
	n.t.Helper()
	now, err := n.Status(n.context(), s.ID)
	n.must(err)
	if w := now.GetLastWake(); w.GetOutcome() != outcome {
		n.t.Fatalf("%s is %q, want %q: %s", s.ID, w.GetOutcome(), outcome, w.GetDetail())
	}
	n.says(now.GetLastWake().GetDetail(), words...)
}

// forgetIdentities removes what workloads with an identity leave behind.
func (n *node) forgetIdentities() {
	n.must(n.RemoveAll(n.context()))
	left, err := filepath.Glob(n.Path(filepath.Join(n.DataDir(), n.Name, "*")))
	n.must(err)
	for _, dir := range left {
		n.must(os.RemoveAll(dir))
	}
}

// TestShutdown: a machine that is stopped in order, and booted again, has lost nothing: a task that is started goes on, one with a restart policy
// by itself, and so does a new container of an identity, as kubelet makes one.
func TestShutdown(t *testing.T) {
	n := newNode(t)
	t.Cleanup(n.forgetIdentities)
	web, always, db := n.server("web"), n.server("always"), n.server("db")
	web.Start(quiet(), mib)
	always.Start(harness.Container{Flags: []string{"--null-io", "--label", "containerd.io/restart.status=running", "--label", "containerd.io/restart.policy=always"}}, mib)
	db.Start(harness.Container{Flags: []string{"--null-io"}, Annotations: map[string]string{"identity": "db"}}, mib)
	n.ctl(0, "lease", "take", "web", "work", "--for", "1h") // nobody asks at a shutdown
	web.Count()

	n.boot(true, func() {
		for _, s := range []*known.Server{web, always, db} {
			s.HangUp()
			s.Pod = n.pod(s.ID)
		}
	})
	if out := n.ctl(0, "ls"); strings.Contains(out, "cordoned") {
		t.Errorf("the cordon outlives the boot:\n%s", out)
	}
	web.Again()
	n.woke(web, "restored")
	web.GoesOn()
	known.Eventually(t, "the restart policy starts its container", func() bool {
		s, err := n.Status(n.context(), "always")
		return err == nil && s.GetState() == "awake"
	})
	n.woke(always, "restored")
	always.GoesOn()
	n.must(n.Remove(n.context(), "db"))
	pod := n.server("pod")
	pod.StartAs(harness.Container{Flags: []string{"--null-io"}, Annotations: map[string]string{"identity": "db"}}, mib, db)
	n.woke(pod, "restored")
	pod.GoesOn()
	web.Sleep() // and wakes by itself again
	web.GoesOn()
}

// TestPowerFailure: what slept goes on, and what was awake is told as lost, though there is an older snapshot of it.
func TestPowerFailure(t *testing.T) {
	n := newNode(t)
	slept, ran := n.server("slept"), n.server("ran")
	slept.Start(quiet(), mib)
	ran.Start(quiet(), mib)
	slept.Sleep()
	ran.Sleep()
	ran.GoesOn()

	n.boot(false, func() {
		for _, s := range []*known.Server{slept, ran} {
			s.HangUp()
			s.Pod = n.pod(s.ID)
		}
	})
	slept.Again()
	n.woke(slept, "restored")
	slept.GoesOn()
	ran.Again()
	n.woke(ran, "cold-started", "ended while it was awake: that state is lost")
	ran.IsNew()
}
