package upload

import (
	"os"
	"strconv"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// asks claims by a name, as a shim does.
func (c *copyOf) asks(grant string) Right {
	c.t.Helper()
	c.local.Grant = grant
	r, err := c.claim()
	if err != nil {
		c.t.Fatal(err)
	}
	return r
}

func (c *copyOf) unused(grant string) {
	c.t.Helper()
	c.must(c.d.Unused(c.t.Context(), c.workload(), grant))
}

// A container that was given the right and never ran leaves none behind, and no rumour that it did.
func TestNeverRan(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	cb := b.container("cb", "db")
	cb.wakes()
	cb.falls(1, memory(5, 1))
	cb.released()
	cb.gone()

	ca := a.container("ca", "db")
	if r := ca.asks("one"); !r.Whole || r.Epoch != 2 {
		t.Fatalf("%+v", r)
	}
	ca.unused("one")
	ca.must(os.RemoveAll(ca.dir())) // as of a container without a head
	ca.gone()
	ca.released()
	if h := ca.storeHead(); h.State != durable.Asleep {
		t.Errorf("%+v", h)
	}
	again := b.container("cb", "db")
	if r := again.wakes(); !r.Whole || r.Epoch != 3 {
		t.Errorf("%+v", r)
	}
}

// A wake that fails before anything ran gives the right back; what was asked for after it stands.
func TestFailedWake(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start()
	c := a.container("c", "db")
	c.asks("one")
	c.runs()
	c.falls(1, memory(5, 1))
	c.released()
	c.asks("two")
	c.asks("three")
	c.unused("two") // comes late
	a.d.mu.Lock()
	granted := a.d.lineages[c.storeName()].granted
	a.d.mu.Unlock()
	if h := c.storeHead(); h.Owner == nil || granted == nil {
		t.Fatalf("what may run is given up: %+v", h)
	}
	for i, state := range []string{"asleep", "blocked"} {
		grant := strconv.Itoa(i)
		c.asks(grant)
		c.set(func() { c.states["db"] = state })
		c.unused(grant)
		c.released()
		if h := c.storeHead(); h.State != durable.Asleep {
			t.Errorf("%s: %+v", state, h)
		}
	}
}

// What is asked for anew while an earlier container's right is not given up yet isn't told that nothing ran meanwhile.
func TestAskedAnewAfterItRan(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	cb := b.container("cb", "db")
	cb.wakes()
	cb.falls(1, memory(5, 1))
	cb.released()
	cb.gone()
	ca := a.container("ca", "db")
	if r := ca.asks("one"); !r.Whole {
		t.Fatalf("%+v", r)
	}
	if r := ca.asks("one"); !r.Whole { // its answer was lost
		t.Fatalf("%+v", r)
	}
	ca.runs()
	ca.must(os.RemoveAll(ca.dir())) // it has ended
	ca.gone()
	second := a.container("ca", "db")
	if r := second.asks("two"); r.Whole {
		t.Errorf("what ran on is told to be whole: %+v", r)
	}
	second.unused("two")
	second.gone()
	second.released()
	if h := second.storeHead(); h.State == durable.Asleep {
		t.Errorf("given up as whole: %+v", h)
	}
	if _, err := snapshot.ReadHead(second.dir()); err == nil {
		t.Error("this test needs a directory without a head")
	}
}
