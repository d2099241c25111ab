package faults

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
	"github.com/hibernate-runtime/hibernate/integration/stepper"
)

// The cells of an outage: what the gate, the neighbour and the known connections are made of is another's for as long as it
// takes, so each try fails. Whatever runs goes on running, and is reached again without anybody's doing as soon as the other
// has gone. None of them hangs: the kernel answers such requests at once, or, behind another's transaction, when that is done.

const isOut = "its network is not in place"

// An outage is begun, and ended.
type outage struct {
	name       string
	begin, end func(*app)
}

var (
	// nft's own lock: a table that a program owns, which nobody else may change while it runs. With its end the table goes.
	ownedTable = outage{"the table is another's",
		func(a *app) {
			a.Helper()
			nft := a.w.Command(a.home.Context(), "ip", "netns", "exec", a.Pod.Name, "nft", "--interactive")
			in, err := nft.StdinPipe()
			a.must(err)
			a.must(nft.Start())
			a.release = func() error { return errors.Join(in.Close(), nft.Wait()) }
			a.Cleanup(func() { a.free() })
			_, err = fmt.Fprintln(in, "delete table inet hibernate; add table inet hibernate { flags owner; }")
			a.must(err)
			a.eventually("the table is the other's", func() bool {
				out, err := a.w.Shell(a.ctx(), "ip netns exec "+a.Pod.Name+" nft list table inet hibernate")
				return err == nil && strings.Contains(out, "flags owner")
			})
		},
		func(a *app) {
			a.Helper()
			a.free()
			script("until nft list chain inet hibernate prerouting >/dev/null 2>&1; do sleep 0.02; done")(a)
		}}

	// A set of the name of the known keep-alives', made for something else.
	foreignSet = outage{"a set is another's",
		script("nft add set inet hibernate probes \"{ type ipv4_addr; }\""),
		script("nft delete set inet hibernate probes || ! nft list set inet hibernate probes")}

	// No neighbour can be had on a link that isn't the sandbox's.
	foreignLink = outage{"the link is another's",
		script("ip link delete hib0; ip link add hib0 type bridge"),
		script("ip link delete hib0 type bridge")}
)

// free ends what holds the table.
func (a *app) free() {
	a.Helper()
	if a.release != nil {
		a.must(a.release())
		a.release = nil
	}
}

func outages() (sleeps, wakes []cell) {
	in := func(o outage, after, outcome, told, state string) cell {
		return cell{step: "after " + after, after: after, fault: o.name, outcome: outcome, told: told, state: state, at: o.begin, mend: o.end}
	}
	undone := in(foreignLink, "pause", "failed", "checkpoint", "awake") // and Connect fails in what undoes it
	undone.rules = []failpoint.Rule{{Command: "checkpoint", Fault: failpoint.Fail}}
	undone.later = func(a *app) { // it must not be put to sleep for a link that it can't have
		a.eventually("it is told", func() bool { return slices.Contains(a.blockers(), "unlinked") })
		a.staysAwake()
	}
	uncommitted := in(ownedTable, "verify", "failed", "", "awake") // and SetGate does
	uncommitted.later = func(a *app) { a.staysAwake() }
	unlearnt := in(foreignSet, "guard", "failed", "learn connections", "awake")
	unlearnt.later = func(a *app) { a.GoesOn(); a.download() } // while the set is there
	sleeps = []cell{in(ownedTable, "guard", "failed", "gate", "awake"), unlearnt, undone, uncommitted}

	nameless := in(foreignLink, "restore", "failed", "255", "ended") // no other sandbox can be given a link, nor a fresh one
	nameless.remedy = "the snapshot is kept as it was: when this is mended, start the container again, and it is restored"
	wakes = []cell{
		in(ownedTable, "claim", "restored", isOut, "awake"), in(ownedTable, "restore", "restored", isOut, "awake"), nameless,
	}
	return sleeps, wakes
}

// download fetches more than can be on its way without an acknowledgement.
func (a *app) download() {
	a.Helper()
	const size = 8 << 20
	if got := len(a.Get("GET", fmt.Sprintf("/bytes?n=%d", size))); got != size {
		a.Errorf("%d bytes came of %d", got, size)
	}
}

// staysAwake looks that the sandbox runs though nobody reaches it.
func (a *app) staysAwake() {
	a.Helper()
	if pid := a.Sandbox(); pid == 0 || syscall.Kill(pid, 0) != nil {
		a.Errorf("the sandbox is %d", pid)
	}
}

func TestOutages(t *testing.T) {
	t.Parallel()
	sleeps, wakes := outages()
	for kind, cells := range map[string][]cell{toSleep: sleeps, toWake: wakes} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, false, nil)
			for i, c := range cells {
				t.Run(c.name(), func(t *testing.T) {
					l.T = t
					defer func() { l.T = l.home }()
					l.run(fmt.Sprint("out", i), nil).meet(kind, c)
				})
			}
		})
	}
}

// The shim is killed in an outage: what it can't take out of the pod, it doesn't leave elsewhere, and the container starts again.
func TestOutagesShimKilled(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	for i, c := range []struct {
		kind, after, step string
		outage
	}{
		{toSleep, "guard", "quiesce", ownedTable}, {toSleep, "guard", "quiesce", foreignLink},
		{toWake, "restore", "open", ownedTable}, {toWake, "restore", "open", foreignLink},
	} {
		t.Run(c.kind+"/"+c.step+", "+c.name, func(t *testing.T) {
			l.T = t
			defer func() { l.T = l.home }()
			a := l.run(fmt.Sprint("killed", i), nil)
			if c.kind == toWake {
				a.Sleep()
			}
			hold := stepper.Hold(a.T, a.w.Path(filepath.Join(a.Bundle(), "hibernate")))
			done := make(chan struct{})
			go func() {
				defer close(done)
				_ = a.transit(c.kind, true) // its shim is gone
			}()
			hold.Until(c.after)
			hold.Over()
			c.begin(a)
			hold.Until(c.step)
			a.must(syscall.Kill(a.Shim(), syscall.SIGKILL))
			hold.Release()
			<-done
			a.must(a.w.WaitTask(a.ctx(), a.ID, ""))
			a.nothingRuns()
			a.free()
			if c.name == foreignLink.name {
				c.end(a)
			}
			a.Again()
			a.IsNew()
			a.Sleep()
			a.GoesOn()
			a.Awake()
			a.sameLinks()
			ran.cells.Add(1)
			ran.lost.Add(1) // the shim's death is the end of an awake container
		})
	}
}

// A pod without its interface has no network, and still its container gets what it is told.
func TestSignalWithoutInterface(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	a := l.run("cut", nil)
	a.Sleep()
	script("ip link delete eth0")(a)
	a.must(a.w.Kill(a.ctx(), a.ID, "USR1")) // which it survives
	a.Awake()
	s, err := a.w.Status(a.ctx(), a.ID)
	a.must(err)
	if last := s.GetLastWake(); last.GetOutcome() != "restored" || !strings.Contains(last.GetDetail(), isOut) {
		a.Errorf("the wake is told as %v", last)
	}
	if out, err := a.w.Exec(a.ctx(), a.ID, "testserver", "-h"); err != nil {
		a.Errorf("exec: %s, %v", out, err)
	}
	a.Sleep()
	a.must(a.w.Kill(a.ctx(), a.ID, "TERM"))
	a.stopped("0")
	ran.cells.Add(2)
	ran.kept.Add(2)
}
