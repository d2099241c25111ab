package faults

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// The cells of the pod's network: parts of it are taken away, as a careless tool does. Each has a container of its own.

// script does something in the pod's namespace.
func script(text string) func(*app) {
	return func(a *app) {
		a.Helper()
		_, err := a.w.Shell(a.ctx(), fmt.Sprintf("ip netns exec %s sh -ec '%s'", a.Pod.Name, text))
		a.must(err)
	}
}

var (
	noLink  = script("ip link delete hib0") // and with it all routes and neighbours
	noTable = script("nft flush ruleset")

	// What a rule of another refers to, the kernel lets nobody take away: here the set of known keep-alives.
	useProbes = script("nft add chain inet hibernate theirs; nft add rule inet hibernate theirs " +
		"ip saddr . ip daddr . meta mark . meta mark . meta mark @probes counter")
	leaveProbes = script("nft delete chain inet hibernate theirs || ! nft list chain inet hibernate theirs")
)

func networks() map[string][]cell {
	all := map[string][]cell{}
	for _, after := range []string{"choose", "claim", "restore", "open"} {
		all[toWake] = append(all[toWake],
			cell{step: "after " + after, after: after, fault: "no link", outcome: "restored", state: "awake", at: noLink},
			cell{step: "after " + after, after: after, fault: "no table", outcome: "restored", state: "awake", at: noTable})
	}
	for _, c := range damages {
		all[toWake] = append(all[toWake], cell{step: "before the ladder", fault: c.name, outcome: "restored", state: "awake", later: c.do})
	}
	all[toWake] = append(all[toWake], cell{
		step: "after restore", after: "restore", fault: "rules that stay", outcome: "restored", state: "awake", at: useProbes, mend: leaveProbes,
	})
	for _, after := range []string{"quiesce", "verify"} {
		all[toSleep] = append(all[toSleep],
			cell{step: "after " + after, after: after, fault: "no link", outcome: "slept", state: "asleep", at: noLink},
			cell{step: "after " + after, after: after, fault: "no table", outcome: "failed or aborted", state: "awake", at: noTable})
	}
	for _, c := range damages {
		if c.name != "no neighbour" { // there is none
			all[toSleep] = append(all[toSleep], cell{step: "asleep", fault: c.name, outcome: "slept", state: "asleep", later: c.do})
		}
	}
	return all
}

// damages are what is done to the link of a container that is awake, or asleep. The sandbox is reached again, by old
// connections and new ones. Where the pod's own kernel is what packets come to meanwhile, nobody talks in that moment: an old
// connection would be reset.
var damages = []struct {
	name string
	do   func(*app)
}{
	{"no link", noLink},
	{"no table", script("nft flush ruleset; until nft list table inet hibernate >/dev/null; do sleep 0.02; done")},
	{"link down", script("ip link set hib0 down")},
	{"no neighbour", func(a *app) { script("ip neigh delete " + a.Pod.IP + " dev hib0")(a) }},
	{"no route", func(a *app) { script("ip route delete " + a.Pod.IP + " table 4242001")(a) }},
	{"no rule", script("ip rule delete pref 10; until ip rule | grep -q ^10:; do sleep 0.02; done")},
}

func TestNetwork(t *testing.T) {
	t.Parallel()
	for kind, cells := range networks() {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			l := newLane(t, false, nil)
			for i, c := range cells {
				t.Run(c.name(), func(t *testing.T) {
					l.T = t
					defer func() { l.T = l.home }()
					a := l.run(fmt.Sprint("pod", i), nil)
					a.meet(kind, c)
				})
			}
		})
	}
}

// Long after its wake, or without ever having slept.
func TestNetworkOfAwake(t *testing.T) {
	t.Parallel()
	l := newLane(t, true, nil)
	for i, c := range damages {
		t.Run(c.name, func(t *testing.T) {
			l.T = t
			defer func() { l.T = l.home }()
			a := l.run(fmt.Sprint("awake", i), nil)
			old, err := a.w.Dial(a.ctx(), "tcp", a.Address(7000))
			a.must(err)
			defer old.Close()
			m := &model{app: a, old: old}
			m.line()
			c.do(a)
			m.line()
			a.GoesOn()
			ran.cells.Add(1)
			ran.kept.Add(1)
			s, err := a.w.Status(a.ctx(), a.ID)
			a.must(err)
			if last := s.GetLastHibernate(); c.name == "no link" && (last.GetReason() != "link" || last.GetOutcome() != "slept") {
				a.Errorf("its new link came by %v", last)
			}
			a.sameLinks()
		})
	}
}

// Who connects in the moment when the gate is not there is accepted by the pod's own kernel, and served.
func TestNetworkInTheMoment(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	for i, asleep := range []bool{true, false} {
		t.Run(fmt.Sprintf("asleep %v", asleep), func(t *testing.T) {
			l.T = t
			defer func() { l.T = l.home }()
			a := l.run(fmt.Sprint("moment", i), nil)
			a.Sleep() // from now on there are listeners
			if !asleep {
				_, err := a.w.Wake(a.ctx(), a.ID)
				a.must(err)
			}
			shim := a.Shim()
			a.must(syscall.Kill(shim, syscall.SIGSTOP))
			noTable(a)
			c, err := a.w.Dial(a.ctx(), "tcp", a.Address(7000))
			a.must(errors.Join(err, syscall.Kill(shim, syscall.SIGCONT)))
			defer c.Close()
			(&model{app: a, old: c}).line()
			a.HangUp()
			a.GoesOn()
			ran.cells.Add(1)
			ran.kept.Add(1)
		})
	}
}

// sameLinks looks that the pod has its two interfaces, and one link only.
func (a *app) sameLinks() {
	a.Helper()
	out, err := a.w.Shell(a.ctx(), "ip netns exec "+a.Pod.Name+" ip -o -brief link")
	a.must(err)
	if n := strings.Count(out, "\n"); n != 3 {
		a.Errorf("interfaces:\n%s", out)
	}
}

// blockers are the codes of why it can't be put to sleep.
func (a *app) blockers() (codes []string) {
	a.Helper()
	s, err := a.w.Status(a.ctx(), a.ID)
	a.must(err)
	for _, r := range s.GetBlockers() {
		codes = append(codes, r.GetCode())
	}
	return codes
}

// What can't be put to sleep now gets its link later, and it is told until then.
func TestNetworkOfBusy(t *testing.T) {
	t.Parallel()
	l := newLane(t, false, nil)
	a := l.run("busy", nil)
	lease := func(ms int64) {
		client, done, err := a.w.Shim(a.ctx(), a.ID)
		a.must(err)
		defer done()
		_, err = client.Lease(a.ctx(), &shimv1.LeaseRequest{Name: "mine", TtlMs: ms})
		a.must(err)
	}
	lease(60_000) // keeps it awake, and must not keep it cut off
	noLink(a)
	a.GoesOn()
	lease(0)

	exec := a.w.Command(a.ctx(), "ctr", "--address", a.w.Address(), "--namespace", a.w.Name, "tasks", "exec", "--exec-id", "long",
		a.ID, "sh", "-c", "read line")
	stdin, err := exec.StdinPipe()
	a.must(err)
	a.must(exec.Start())
	a.eventually("the exec runs", func() bool { return slices.Contains(a.blockers(), "exec") })
	noLink(a)
	a.eventually("it is told", func() bool { return slices.Contains(a.blockers(), "unlinked") })
	a.must(stdin.Close())
	_ = exec.Wait() // with the status of a read that found no line
	a.GoesOn()
	if codes := a.blockers(); slices.Contains(codes, "unlinked") {
		a.Errorf("it is still told: %v", codes)
	}
	ran.cells.Add(2)
	ran.kept.Add(2)
}
