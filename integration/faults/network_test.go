package faults

import (
	"fmt"
	"testing"
)

// The cells of the pod's network: parts of it are taken away, as a careless tool does. Each has a container of its own.

// script does something in the pod's namespace.
func script(text string) func(*app) {
	return func(a *app) {
		a.Helper()
		_, err := a.w.Shell(a.ctx(), fmt.Sprintf("ip netns exec %s sh -ec '%s'", a.pod.Name, text))
		a.must(err)
	}
}

var (
	noLink  = script("ip link delete hib0") // and with it all routes and neighbours
	noTable = script("nft flush ruleset")
	request = func(a *app) { // without a link no packet wakes it
		a.Helper()
		_, err := a.w.Wake(a.ctx(), a.id)
		a.must(err)
	}
)

func networks() map[string][]cell {
	all := map[string][]cell{}
	for _, after := range []string{"choose", "claim", "restore"} {
		all[toWake] = append(all[toWake],
			cell{step: "after " + after, after: after, fault: "no link", outcome: "restored", state: "awake", at: noLink},
			cell{step: "after " + after, after: after, fault: "no table", outcome: "restored", state: "awake", at: noTable})
	}
	for _, after := range []string{"quiesce", "verify"} {
		all[toSleep] = append(all[toSleep],
			cell{step: "after " + after, after: after, fault: "no link", outcome: "slept", state: "asleep", at: noLink, mend: request},
			cell{step: "after " + after, after: after, fault: "no table", outcome: "failed or aborted", state: "awake", at: noTable})
	}
	return all
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
