package move

import (
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// TestDrain: a node is emptied once the store has all that it had, and into another node: what has an identity goes on there, and what hasn't sleeps
// here, and is named.
func TestDrain(t *testing.T) {
	storetest.Require(t)
	a, b := peers(t, nil)
	plain := a.server("plain")
	plain.Start(harness.Container{Flags: []string{"--null-io"}}, mib)
	plain.HangUp()
	a.says(a.ctl("drain", "--wait-uploaded"), "plain: asleep (", "1 workloads, 1 done, 0 not")
	a.says(a.ctl("inspect", "plain"), "sequence 1, uploaded")
	a.says(a.ctl("uncordon"), "no longer cordoned")
	plain.GoesOn()
	plain.HangUp()

	one := a.server("one")
	one.Start(db(), mib)
	one.HangUp()
	a.says(a.ctl("drain", "--to", "node-b"), "one: moved to node-b", "plain: asleep, and not moved: it has no identity", "2 workloads, 1 done, 1 not")
	two := b.follows(one, "two")
	b.must(two.Resume(db(), mib))
	b.began(two, "restored")
	two.GoesOn()
	two.HangUp()
	a.ctl("uncordon")
	plain.GoesOn()
	plain.HangUp()
	b.must(b.Kill(b.context(), two.ID, "KILL"))
}
