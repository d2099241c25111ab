package move

import (
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// TestMove: a workload that is stopped on one node goes on on another, in a container and a pod of other names and addresses; back again,
// too; and never on both.
func TestMove(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, nil)
	one := a.server("one")
	one.Start(db(), mib)
	file := one.Get("POST", "/write?path=/root/file&mib=2")
	opened := one.Get("POST", "/file/create?name=kept&mib=1")
	pid := one.Get("GET", "/pid")
	one.Count()
	one.HangUp()
	a.leave(one)

	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "restored", "came from the store")
	two.GoesOn()
	if got := two.Get("GET", "/sha256?path=/root/file"); got != file {
		t.Error("the file is another one")
	}
	if got := two.Get("GET", "/file/sha256?name=kept"); got != opened {
		t.Errorf("the file that was open is %s, was %s", got, opened)
	}
	if got := two.Get("GET", "/pid"); got != pid {
		t.Errorf("its pid is %s, was %s", got, pid)
	}

	again := a.follows(one, "again")
	a.refuses(again, db("wake-timeout", "3s"), "node-b", "lives")
	two.GoesOn()
	two.HangUp()
	b.leave(two)

	back := a.follows(two, "back")
	a.must(back.Resume(db(), mib))
	a.began(back, "restored", "came from the store")
	back.GoesOn()
	back.HangUp()
	back.Sleep()
	back.GoesOn() // by its own snapshot
	a.began(back, "restored")
	a.must(a.Kill(a.context(), back.ID, "KILL"))
}

// TestASleeperGoesOnElsewhere: a sleeper whose container is still there goes on on another node, and comes back once it sleeps there.
func TestASleeperGoesOnElsewhere(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, map[string]string{"wake-timeout": `"4s"`})
	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	one.Sleep()
	two := b.follows(one, "two")
	known.Eventually(t, "it goes on on the other node", func() bool {
		err := two.Resume(db(), mib)
		if err != nil {
			b.must(b.Remove(b.context(), two.ID))
		}
		return err == nil
	})
	b.began(two, "restored")
	two.GoesOn()

	if _, err := a.Wake(a.context(), one.ID); err == nil {
		t.Fatal("both run")
	} else {
		a.says(err.Error(), "node-b")
	}
	if now, err := a.Status(a.context(), one.ID); err != nil || now.GetState() != "asleep" || now.GetLastWake().GetOutcome() != "postponed" {
		t.Errorf("it is %s, woken as %v: %v", now.GetState(), now.GetLastWake(), err)
	}
	two.HangUp()
	two.Sleep()
	known.Eventually(t, "it comes back", func() bool { _, err := a.Wake(a.context(), one.ID); return err == nil })
	a.began(one, "restored", "came from the store", "stale")
	home := known.Follow(t, two, a.World, one.ID, one.Pod)
	home.GoesOn()
	a.must(a.Kill(a.context(), one.ID, "KILL"))
}

// TestDeath: what a dead node ran is taken over once it has been silent for long enough, as it slept last, and told.
func TestDeath(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, nil)
	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	one.Sleep()
	a.stored(one, 1)
	count := one.Counted()
	one.GoesOn()
	one.Count() // is lost
	shim := one.Shim()
	a.must(a.Daemon.Kill())
	a.must(syscall.Kill(shim, syscall.SIGKILL))
	died := time.Now()

	two := b.follows(one, "two")
	two.Recall(count)
	b.must(two.Resume(db("restore-older", "true"), mib))
	if took := time.Since(died); took < takeover {
		t.Errorf("it was taken over after %v", took)
	}
	b.began(two, "restored-older", "node-a", "ran on after")
	two.GoesOn()

	a.must(a.Daemon.Start(a.context()))
	a.must(a.Remove(a.context(), one.ID))
	again := a.follows(one, "again")
	a.refuses(again, db("wake-timeout", "3s"), "node-b")
	two.HangUp()
	b.leave(two)
	back := a.follows(two, "back")
	a.must(back.Resume(db(), mib))
	a.began(back, "restored", "came from the store")
	back.GoesOn()
	a.must(a.Kill(a.context(), back.ID, "KILL"))
}

// TestColdTakeover: without restore-older a takeover starts afresh, and says what was lost.
func TestColdTakeover(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, nil)
	one := a.server("one")
	one.Start(db(), mib)
	a.must(a.Daemon.Kill())
	a.must(syscall.Kill(one.Shim(), syscall.SIGKILL))
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "cold-started", "node-a", "left no snapshot")
	two.IsNew()
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}

// TestShimDies: what ran when its shim died is given up by the node, which lives, once containerd has taken down what was left.
func TestShimDies(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, nil)
	one := a.server("one")
	one.Start(db(), mib)
	a.must(syscall.Kill(one.Shim(), syscall.SIGKILL))
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "cold-started", "node-a", "left no snapshot")
	two.IsNew()
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}

// TestPartition: a node that can't reach the store puts its workloads to sleep before another one may take them over, and they go on when it
// can again. When it can't for long, another node takes over, and the first one's copy is set aside.
func TestPartition(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, map[string]string{"wake-timeout": `"4s"`})
	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	a.wire.Cut(true)
	_, err := a.WaitState(a.context(), one.ID, "asleep")
	a.must(err)
	now, err := a.Status(a.context(), one.ID)
	a.must(err)
	if last := now.GetLastHibernate(); last.GetReason() != "lease" || last.GetOutcome() != "slept" {
		t.Errorf("it sleeps since %v", last)
	}
	a.wire.Cut(false)
	_, err = a.WaitState(a.context(), one.ID, "awake")
	a.must(err)
	a.began(one, "restored")
	one.GoesOn()
	one.HangUp()

	a.wire.Cut(true)
	_, err = a.WaitState(a.context(), one.ID, "asleep")
	a.must(err)
	two := b.server("two")
	known.Eventually(t, "it is taken over", func() bool {
		err := two.Resume(db(), mib)
		if err != nil {
			b.must(b.Remove(b.context(), two.ID))
		}
		return err == nil
	})
	b.began(two, "cold-started", "node-a")
	two.Grow()
	a.wire.Cut(false)
	a.must(a.WaitTask(a.context(), one.ID, "STOPPED"))
	if got := one.ExitStatus(); got != 137 {
		t.Errorf("the overtaken copy ended with %d", got)
	}
	two.GoesOn()
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}

// TestRelaxed: with fencing = relaxed the store being away stops nothing: its last owner wakes its own snapshot, and says that nobody could
// confirm it. Where another node had claimed it all the same, that copy is ended when the store is back.
func TestRelaxed(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, map[string]string{"fencing": `"relaxed"`})
	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	one.Sleep()
	a.stored(one, 1)
	known.Eventually(t, "it is given up", func() bool { return strings.Contains(a.ctl("snapshots", "ls", "-o", "json"), `"last": "node-a"`) })
	two := b.follows(one, "two")
	a.wire.Cut(true)
	one.GoesOn()
	a.began(one, "restored", "not confirmed", "fencing = relaxed")
	if now, err := a.Status(a.context(), one.ID); err != nil || !now.GetUnconfirmed() {
		t.Errorf("unconfirmed is %t: %v", now.GetUnconfirmed(), err)
	}
	b.must(two.Resume(db(), mib))
	b.began(two, "restored", "came from the store")
	a.wire.Cut(false)
	a.must(a.WaitTask(a.context(), one.ID, "STOPPED"))
	if got := one.ExitStatus(); got != 137 {
		t.Errorf("the overtaken copy ended with %d", got)
	}
	two.GoesOn()
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}

// TestNobodyLeftToEndIt: where shim and containerd are dead, too, the daemon ends the sandbox with the node's lease, before another node may
// take over.
func TestNobodyLeftToEndIt(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, nil)
	one := a.server("one")
	one.Start(db(), mib)
	now, err := a.Status(a.context(), one.ID)
	a.must(err)
	sandbox := handover.Record{Pid: int(now.GetSandboxPid())}
	sandbox.StartTime, err = handover.StartTime(sandbox.Pid)
	a.must(err)
	a.must(a.Containerd.Kill())
	a.must(syscall.Kill(one.Shim(), syscall.SIGKILL))
	if !sandbox.Alive() {
		t.Fatal("nothing is left of it that this test is about")
	}
	a.wire.Cut(true)
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	if sandbox.Alive() {
		t.Error("both run")
	}
	b.began(two, "cold-started", "node-a")
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}

// TestStoppedShim: a shim that is stopped ends nothing when the node's lease is over: the daemon kills its sandbox, before another node may take over.
func TestStoppedShim(t *testing.T) {
	storetest.Require(t)
	a, b := pair(t, nil)
	one := a.server("one")
	one.Start(db(), mib)
	now, err := a.Status(a.context(), one.ID)
	a.must(err)
	sandbox := handover.Record{Pid: int(now.GetSandboxPid())}
	sandbox.StartTime, err = handover.StartTime(sandbox.Pid)
	a.must(err)
	shim := one.Shim()
	a.must(syscall.Kill(shim, syscall.SIGSTOP))
	defer func() { _ = syscall.Kill(shim, syscall.SIGCONT) }()
	a.wire.Cut(true)
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	if sandbox.Alive() {
		t.Error("both run")
	}
	b.began(two, "cold-started", "node-a")
	a.must(syscall.Kill(shim, syscall.SIGCONT))
	a.wire.Cut(false)
	a.must(a.WaitTask(a.context(), one.ID, "STOPPED"))
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}
