package durable

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

func orphan(w *world, epoch, number string) string {
	name := full("p/0000000000000000000" + epoch + "-00000000000000000001-0123456789abcdef0123456789abcdef-0000000" + number)
	w.bucket.Alter(name, func([]byte) []byte { return []byte("orphan") })
	return name
}

// The newest N generations stay, and those that are pinned; packs that only the others have go, and orphans after the grace.
func TestCollect(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	for seq := range uint64(6) {
		if _, err := a.Commit(t.Context(), w.image(1, seq+1, checkpoint(memory(50, seq+1))), CommitOptions{Full: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Pin(t.Context(), 1, true); err != nil {
		t.Fatal(err)
	}
	orphan(w, "1", "1")
	w.bucket.Alter(full("notes.txt"), func([]byte) []byte { return []byte("a person's") })
	young, err := a.Collect(t.Context(), CollectOptions{})
	if err != nil || !slices.Equal(young.Dropped, []uint64{3, 2}) || len(young.Deleted) != 0 || len(young.Unknown) != 1 {
		t.Errorf("before the grace: %+v, %v", young, err)
	}
	w.pass(time.Hour + 2*time.Second)
	before := w.bucket.Names()
	dry, err := a.Collect(t.Context(), CollectOptions{DryRun: true})
	if err != nil || !slices.Equal(before, w.bucket.Names()) {
		t.Fatalf("a dry run changes something, or %v", err)
	}
	wet, err := a.Collect(t.Context(), CollectOptions{})
	if err != nil || !slices.Equal(dry.Deleted, wet.Deleted) || len(wet.Deleted) != 5 {
		t.Errorf("deleted %v, dry %v, %v", wet.Deleted, dry.Deleted, err)
	}
	for _, seq := range []uint64{1, 4, 5, 6} {
		a.has(t, seq, checkpoint(memory(50, seq)))
	}
	if len(w.data("p/")) != 4 || len(w.data("m/")) != 4 || len(w.data("gc/")) != 1 || w.bucket.Body(full("notes.txt")) == nil {
		t.Errorf("left are %q", w.bucket.Names())
	}
	// Again: nothing is written. Lists go after a day, and bring forth no new ones.
	rev := w.rev(t)
	for range 3 {
		if again, err := a.Collect(t.Context(), CollectOptions{}); err != nil || len(again.Deleted) != 0 {
			t.Errorf("again: %+v, %v", again, err)
		}
	}
	if w.rev(t) != rev {
		t.Error("a collection with nothing to do writes")
	}
	for range 5 {
		w.pass(25 * time.Hour)
		if _, err := a.Collect(t.Context(), CollectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if len(w.data("gc/")) != 0 || w.rev(t) != rev+1 {
		t.Errorf("lists %q, %d more writes", w.data("gc/"), w.rev(t)-rev)
	}
}

func (w *world) rev(t *testing.T) uint64 {
	h, err := w.node("z").Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return h.Revision
}

// A dry run tells also what only generations had that it would drop.
func TestDryRunDrops(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a", func(c *Config) { c.Generations = 1 })
	for seq := range uint64(2) {
		if _, err := a.Commit(t.Context(), w.image(1, seq+1, checkpoint(memory(50, seq))), CommitOptions{Full: true}); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(2 * time.Hour)
	dry, err := a.Collect(t.Context(), CollectOptions{DryRun: true})
	if err != nil {
		t.Fatal(err)
	}
	wet, err := a.Collect(t.Context(), CollectOptions{})
	if err != nil || !slices.Equal(dry.Deleted, wet.Deleted) || len(wet.Deleted) != 2 || !slices.Equal(dry.Dropped, wet.Dropped) {
		t.Errorf("dry %+v, wet %+v, %v", dry, wet, err)
	}
}

// What is being restored, and what is read under a lease, stays, also when its generation has left the head; a lease
// of the dead doesn't.
func TestNeededGenerationsStay(t *testing.T) {
	w := newWorld(t)
	one := func(c *Config) { c.Generations = 1 }
	a, reader := w.owner("a", one), w.node("r")
	for seq := range uint64(3) {
		if _, err := a.Commit(t.Context(), w.image(1, seq+1, checkpoint(memory(50, seq+1))), CommitOptions{Full: true}); err != nil {
			t.Fatal(err)
		}
	}
	r, err := reader.Open(t.Context(), 1, OpenOptions{Lease: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := w.node("b", one)
	if _, err := b.Acquire(t.Context(), Claim{Restore: 2}); err != nil {
		t.Fatal(err)
	}
	collect := func(want ...uint64) {
		t.Helper()
		got, err := b.Collect(t.Context(), CollectOptions{})
		if err != nil || !slices.Equal(got.Dropped, want) {
			t.Errorf("dropped %v, want %v; %v", got.Dropped, want, err)
		}
	}
	w.pass(2 * time.Hour)
	if err := r.lease.write(t.Context()); err != nil { // as it does every quarter of an hour
		t.Fatal(err)
	}
	collect()
	if err := a.Remove(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "being restored") {
		t.Errorf("remove of what is restored: %v", err)
	}
	if err := a.Remove(t.Context(), 1); err != nil { // by a person, in spite of the lease
		t.Fatal(err)
	}
	if err := b.Running(t.Context()); err != nil {
		t.Fatal(err)
	}
	collect(2)
	dir := t.TempDir()
	if err := r.Restore(t.Context(), dir, nil); err != nil {
		t.Errorf("a reader with a lease: %v", err)
	}
	if len(w.data("p/")) != 2 {
		t.Errorf("packs %q", w.data("p/"))
	}
	w.pass(2 * time.Hour) // the reader has died
	collect()
	if len(w.data("p/")) != 1 || len(w.data("l/")) != 0 {
		t.Errorf("left are %q", w.bucket.Names())
	}
}

// A reader whose lease can't be written any more stops before a collector may think that it is dead.
func TestLeaseIsLost(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	a.commit(t, w.image(1, 1, checkpoint(memory(50, 1))))
	n := w.node("r", func(c *Config) { c.Grace = time.Hour })
	clock := make(chan time.Duration, 100)
	var now time.Duration
	n.t.boot = func() time.Duration {
		select {
		case d := <-clock:
			now += d
		default:
		}
		return now
	}
	opened := make(chan struct{})
	n.t.pause = func(ctx context.Context, _ time.Duration) error { <-opened; return ctx.Err() }
	n.store.Script(memstore.Fault{Op: memstore.Put, Name: full("l/"), Skip: 1, Kind: memstore.Fail, Times: -1})
	for range 50 {
		clock <- 5 * time.Minute
	}
	r, err := n.Open(t.Context(), 1, OpenOptions{Lease: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	close(opened)
	<-r.ctx.Done()
	if now > time.Hour {
		t.Errorf("it stopped after %v", now)
	}
	f, err := r.File("pages.img")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("read: %v", err)
	}
	if err := r.Restore(t.Context(), t.TempDir(), nil); !errors.Is(err, ErrLeaseLost) {
		t.Errorf("restore: %v", err)
	}
}

// A reader that comes when its generation has just left the head is told, and leaves no lease.
func TestReaderComesTooLate(t *testing.T) {
	w := newWorld(t)
	a, n := w.owner("a"), w.node("r")
	for seq := range uint64(2) {
		a.commit(t, w.image(1, seq+1, checkpoint(memory(50, seq+1))))
	}
	n.store.Script(memstore.Fault{Op: memstore.Put, Name: full("l/"), Do: func() {
		if err := a.Remove(t.Context(), 1); err != nil {
			t.Error(err)
		}
	}})
	if _, err := n.Open(t.Context(), 1, OpenOptions{Lease: true}); !errors.Is(err, ErrNone) {
		t.Errorf("open: %v", err)
	}
	if got := w.data("l/"); len(got) != 0 {
		t.Errorf("leases %q", got)
	}
}

// Nothing is deleted after an error in what a collection decides on, and a list that is short of most of it is not believed.
func TestNothingIsDeletedAfterAnError(t *testing.T) {
	for what, f := range map[string]memstore.Fault{
		"the list":         {Op: memstore.List, Kind: memstore.Fail, Times: -1},
		"the second list":  {Op: memstore.List, Skip: 1, Kind: memstore.Fail, Times: -1},
		"a manifest":       {Op: memstore.Get, Name: full("m/"), Kind: memstore.Fail, Times: -1},
		"a wrong manifest": {Op: memstore.Get, Name: full("m/"), Kind: memstore.Flip, Times: -1},
		"a lease":          {Op: memstore.Get, Name: full("l/"), Kind: memstore.Fail, Times: -1},
		"a wrong lease":    {Op: memstore.Get, Name: full("l/"), Kind: memstore.Short, Times: -1},
		"a list's list":    {Op: memstore.Put, Name: full("gc/"), Kind: memstore.Fail, Times: -1},
		"the head":         {Op: memstore.Put, Name: headObject, Kind: memstore.Fail, Times: -1},
		"rights":           {Op: memstore.Get, Name: headObject, Kind: memstore.Fail, Err: store.ErrRefused, Times: -1},
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t)
			a := w.owner("a")
			a.commit(t, w.image(1, 1, checkpoint(memory(50, 1))))
			for i := range 8 {
				orphan(w, "1", string(rune('0'+i)))
			}
			w.pass(2 * time.Hour)
			r, err := w.node("r").Open(t.Context(), 1, OpenOptions{Lease: true})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			before := w.data("p/")
			n := w.node("c")
			n.store.Script(f)
			if got, err := n.Collect(t.Context(), CollectOptions{}); err == nil || len(got.Deleted) != 0 {
				t.Errorf("deleted %v, %v", got.Deleted, err)
			}
			if got := w.data("p/"); !slices.Equal(got, before) {
				t.Errorf("left are %q of %q", got, before)
			}
			if what == "a wrong manifest" {
				if _, err := n.Collect(t.Context(), CollectOptions{}); !errors.Is(err, snapshot.ErrCorrupt) {
					t.Errorf("%v", err)
				}
			}
			n.store.Heal()
			if got, err := n.Collect(t.Context(), CollectOptions{}); err != nil || len(got.Deleted) < 8 {
				t.Errorf("healed: deleted %v, %v", got.Deleted, err)
			}
		})
	}
}

// A collector that is killed anywhere leaves what the next one ends.
func TestCollectorIsKilled(t *testing.T) {
	for skip := range 30 {
		w := newWorld(t)
		a := w.owner("a", func(c *Config) { c.Generations = 1 })
		for seq := range uint64(3) {
			if _, err := a.Commit(t.Context(), w.image(1, seq+1, checkpoint(memory(20, seq+1))), CommitOptions{Full: true}); err != nil {
				t.Fatal(err)
			}
		}
		w.pass(2 * time.Hour)
		n := w.node("c", func(c *Config) { c.Generations = 1 })
		n.store.Script(memstore.Fault{Skip: skip, Kind: memstore.Fail, Err: errors.New("killed"), Times: -1})
		_, err := n.Collect(t.Context(), CollectOptions{})
		if err == nil {
			if skip < 10 {
				t.Errorf("a collection has %d requests", skip)
			}
			return
		}
		a.has(t, 3, checkpoint(memory(20, 3)))
		w.pass(2 * time.Hour)
		if _, err := w.node("d", func(c *Config) { c.Generations = 1 }).Collect(t.Context(), CollectOptions{}); err != nil {
			t.Fatal(err)
		}
		if len(w.data("p/")) != 1 || len(w.data("m/")) != 1 {
			t.Errorf("killed at request %d, left are %q", skip, w.bucket.Names())
		}
		a.has(t, 3, checkpoint(memory(20, 3)))
	}
	t.Error("30 requests are not enough")
}

// What an operation with a live lease has uploaded stays, whatever its age; once the lease is over it is garbage.
func TestUploadLease(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	name := orphan(w, "1", "1")
	n, ok := parseObjectName(strings.TrimPrefix(name, full("")))
	if !ok {
		t.Fatal(name)
	}
	w.pass(2 * time.Hour)
	le, err := a.newLease(n.op, leaseBody{Kind: uploadLease})
	if err != nil {
		t.Fatal(err)
	}
	if err := le.write(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := a.Collect(t.Context(), CollectOptions{}); err != nil || len(got.Deleted) != 0 {
		t.Errorf("deleted %v, %v", got.Deleted, err)
	}
	w.pass(2 * time.Hour)
	if got, err := a.Collect(t.Context(), CollectOptions{}); err != nil || len(got.Deleted) != 2 {
		t.Errorf("deleted %v, %v", got.Deleted, err)
	}
}

// A lease is written while an upload lasts, and is taken away at its end.
func TestLeaseOfAnUpload(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	seen := make(chan struct{})
	waits := make(chan struct{}, 1)
	waits <- struct{}{}
	a.t.pause = func(ctx context.Context, _ time.Duration) error {
		select {
		case <-waits:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	a.store.Script(
		memstore.Fault{Op: memstore.Put, Name: full("m/"), Do: func() { <-seen }},
		memstore.Fault{Op: memstore.Put, Name: full("l/"), Do: func() { close(seen) }},
	)
	a.commit(t, w.image(1, 1, checkpoint(memory(10, 1))))
	if got := w.data("l/"); len(got) != 0 {
		t.Errorf("leases %q", got)
	}
}

// When a list names what a generation needs, which can't be, nothing is deleted.
func TestInconsistent(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	g := a.commit(t, w.image(1, 1, checkpoint(memory(10, 1)))).Generation
	orphan(w, "1", "1")
	w.pass(2 * time.Hour)
	c := &collect{l: a.Lineage}
	v, err := c.look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := c.condemn(t.Context(), v, nil, []Garbage{{Name: g.Manifest}}); again || err != nil {
		t.Fatal(again, err)
	}
	before := w.bucket.Names()
	if _, err := a.Collect(t.Context(), CollectOptions{}); !errors.Is(err, ErrInconsistent) {
		t.Errorf("%v", err)
	}
	if !slices.Equal(before, w.bucket.Names()) {
		t.Error("something was deleted")
	}
}
