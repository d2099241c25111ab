package durable

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

const headObject = headsPrefix + testName

// An answer that is lost doesn't make a change that was made look refused, nor is it made twice.
func TestLostAnswers(t *testing.T) {
	w := newWorld(t)
	n := w.node("a")
	lose := memstore.Fault{Op: memstore.Put, Name: headObject, Kind: memstore.LoseAnswer}
	step := func(what string, do func() error, rev uint64) {
		t.Helper()
		n.store.Script(lose)
		if err := do(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		h, err := n.Head(t.Context())
		if err != nil || h.Revision != rev {
			t.Errorf("after %s: revision %d, want %d; %v", what, h.Revision, rev, err)
		}
	}
	want := checkpoint(memory(10, 1))
	step("acquire", func() error { _, err := n.Acquire(t.Context(), Claim{}); return err }, 1)
	step("commit", func() error { _, err := n.Commit(t.Context(), w.image(1, 1, want), CommitOptions{}); return err }, 2)
	step("pin", func() error { return n.Pin(t.Context(), 1, true) }, 3)
	step("release", func() error { return n.Release(t.Context()) }, 4)
	n.has(t, 1, want)

	// Lost, and then somebody else was at it before anybody could look.
	other := w.node("b")
	n.store.Script(lose, memstore.Fault{Op: memstore.Get, Name: headObject, Skip: 1, Do: func() {
		if err := other.Pin(t.Context(), 1, false); err != nil {
			t.Error(err)
		}
	}})
	h, err := n.Acquire(t.Context(), Claim{})
	if err != nil || h.Epoch != 2 {
		t.Errorf("epoch %d, %v: it was claimed twice", h.Epoch, err)
	}
	// The same of a pack, a manifest and a list.
	for _, prefix := range []string{"p/", "m/"} {
		n.store.Script(memstore.Fault{Op: memstore.Put, Name: full(prefix), Kind: memstore.LoseAnswer})
	}
	r := n.commit(t, w.image(2, 2, checkpoint(memory(10, 2))))
	if len(w.data("p/")) != 2 || len(w.data("m/")) != 2 || r.Passes != 1 {
		t.Errorf("objects %q", w.bucket.Names())
	}
	orphan(w, "1", "1")
	w.pass(2 * time.Hour)
	n.store.Script(lose, memstore.Fault{Op: memstore.Put, Name: full("gc/"), Kind: memstore.LoseAnswer})
	if got, err := n.Collect(t.Context(), CollectOptions{}); err != nil || len(got.Deleted) != 1 {
		t.Errorf("deleted %v, %v", got.Deleted, err)
	}
}

// A store that is down for a while is waited for; one that stays down ends it, and the head is as it was.
func TestStoreIsDown(t *testing.T) {
	w := newWorld(t)
	n := w.owner("a")
	im := w.image(1, 1, checkpoint(memory(10, 1)))
	n.store.Script(memstore.Fault{Op: memstore.Put, Name: full("p/"), Kind: memstore.Fail, Times: 3})
	n.commit(t, im)
	for _, name := range []string{full("p/"), full("m/"), headObject} {
		n.store.Script(memstore.Fault{Op: memstore.Put, Name: name, Kind: memstore.Fail, Times: -1})
		_, err := n.Commit(t.Context(), w.image(1, 2, checkpoint(memory(10, 2))), CommitOptions{})
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
		n.store.Heal()
		if h, err := n.Head(t.Context()); err != nil || len(h.Generations) != 1 {
			t.Errorf("%s: head %+v, %v", name, h, err)
		}
	}
	n.store.Script(memstore.Fault{Op: memstore.Put, Name: full("p/"), Kind: memstore.Fail, Err: store.ErrRefused, Times: -1})
	_, err := n.Commit(t.Context(), w.image(1, 2, checkpoint(memory(10, 2))), CommitOptions{})
	if !errors.Is(err, store.ErrRefused) || !strings.Contains(err.Error(), "tried 1 times") {
		t.Errorf("refused: %v", err)
	}
	n.store.Heal()
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the node is shut down")
	n.store.Script(memstore.Fault{Op: memstore.Put, Name: full("p/"), Kind: memstore.Stall, Do: func() { cancel(gone) }})
	if _, err := n.Commit(ctx, w.image(1, 2, checkpoint(memory(10, 2))), CommitOptions{}); err == nil {
		t.Error("a commit goes on after its context")
	}
	n.commit(t, w.image(1, 2, checkpoint(memory(10, 2))))
	n.has(t, 2, checkpoint(memory(10, 2)))
}

// Of many that claim at once each epoch is one's.
func TestEpochsAreOnesOwn(t *testing.T) {
	w := newWorld(t)
	const nodes, claims = 8, 5
	var mu sync.Mutex
	seen := map[uint64]int{}
	var wg sync.WaitGroup
	for range nodes {
		n := w.node("n")
		wg.Go(func() {
			for range claims {
				h, err := n.Acquire(t.Context(), Claim{TakeOver: true})
				if errors.Is(err, ErrContended) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seen[h.Epoch]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	h, err := w.node("z").Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for e := uint64(1); e <= h.Epoch; e++ {
		if seen[e] != 1 {
			t.Errorf("epoch %d was claimed %d times", e, seen[e])
		}
	}
}

// A daemon that is started again goes on with its claim, until somebody else has claimed.
func TestResume(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	h, _ := a.Head(t.Context())
	again := w.node("a")
	if _, err := again.Resume(t.Context(), h.Owner.Claim); err != nil {
		t.Fatal(err)
	}
	again.commit(t, w.image(1, 1, checkpoint(memory(5, 1))))
	b := w.node("b")
	if _, err := b.Acquire(t.Context(), Claim{TakeOver: true}); err != nil {
		t.Fatal(err)
	}
	var fenced *FencedError
	_, err := w.node("a").Resume(t.Context(), h.Owner.Claim)
	if !errors.As(err, &fenced) || fenced.Head != 2 || fenced.Owner.Node != "b" {
		t.Errorf("%v", err)
	}
}

// A commit whose objects a collector has condemned meanwhile uploads them again, under other names, and never trusts that
// they are still there.
func TestCondemnedIsUploadedAgain(t *testing.T) {
	for _, c := range []struct {
		what   string
		after  string // of which the answer comes late
		delete bool   // the collector dies before it has deleted
		passes int
	}{
		{"packs", "m/", true, 2},
		{"packs that are still there", "m/", false, 2},
		{"the manifest, too", headObject, true, 2},
		{"the manifest alone", headObject, true, 1},
	} {
		t.Run(c.what, func(t *testing.T) {
			w := newWorld(t)
			a, b := w.owner("a"), w.node("b")
			a.commit(t, w.image(1, 1, checkpoint(memory(50, 1))))
			collect := func() {
				w.pass(2 * a.t.cfg.Grace) // without a lease: it hangs in this test
				if !c.delete {
					b.store.Script(memstore.Fault{Op: memstore.Delete, Kind: memstore.Fail, Times: -1})
				}
				got, err := b.Collect(t.Context(), CollectOptions{})
				if (err == nil) != c.delete || c.delete && len(got.Deleted) == 0 {
					t.Errorf("collected %+v, %v", got, err)
				}
			}
			name := headObject
			if c.after != headObject {
				name = full(c.after)
			}
			a.store.Script(memstore.Fault{Op: memstore.Put, Name: name, Do: collect})
			before := w.data("p/")
			want := checkpoint(memory(60, 2))
			if c.passes == 1 { // nothing is new
				want = checkpoint(memory(50, 1))
			}
			r := a.commit(t, w.image(1, 2, want))
			if r.Passes != c.passes {
				t.Errorf("%d passes, want %d", r.Passes, c.passes)
			}
			if got := w.data("p/"); len(got) < len(before)+c.passes-1 {
				t.Errorf("packs %q", got)
			}
			a.has(t, 2, want)
			// What the dead one has left is deleted by the next, whatever its age, without another list.
			b.store.Heal()
			rev := w.rev(t)
			if left, err := b.Collect(t.Context(), CollectOptions{}); err != nil || (len(left.Deleted) == 0) != c.delete || w.rev(t) != rev {
				t.Errorf("left were %v, %v", left.Deleted, err)
			}
			w.pass(2 * a.t.cfg.Grace)
			if _, err := b.Collect(t.Context(), CollectOptions{}); err != nil {
				t.Fatal(err)
			}
			a.has(t, 1, checkpoint(memory(50, 1)))
			a.has(t, 2, want)
			if got := w.data("p/"); len(got) != c.passes {
				t.Errorf("%d packs at the end: %q", len(got), got)
			}
		})
	}
}

// A list of condemned objects that is gone counts as one with everything.
func TestMissingListCondemnsAll(t *testing.T) {
	w := newWorld(t)
	a, b := w.owner("a"), w.node("b")
	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Do: func() {
		w.bucket.Alter(full("p/00000000000000000001-00000000000000000001-0123456789abcdef0123456789abcdef-00000000"), func([]byte) []byte { return []byte("orphan") })
		w.pass(2 * time.Hour)
		if _, err := b.Collect(t.Context(), CollectOptions{}); err != nil {
			t.Error(err)
		}
		for _, name := range w.data("gc/") {
			w.bucket.Alter(full(name), func([]byte) []byte { return nil })
		}
	}})
	want := checkpoint(memory(50, 1))
	if r := a.commit(t, w.image(1, 1, want)); r.Passes != 2 {
		t.Errorf("%d passes", r.Passes)
	}
	a.has(t, 1, want)
}

// A commit goes on beside a collector that only drops generations, without uploading anything twice; and one whose base is
// dropped doesn't rely on it.
func TestCommitBesideOthers(t *testing.T) {
	w := newWorld(t)
	a, b := w.owner("a"), w.node("b")
	for seq := range uint64(4) {
		a.commit(t, w.image(1, seq+1, checkpoint(memory(50, seq))))
	}
	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Do: func() {
		if _, err := b.Collect(t.Context(), CollectOptions{}); err != nil {
			t.Error(err)
		}
	}})
	want := checkpoint(memory(60, 3))
	if r := a.commit(t, w.image(1, 5, want)); r.Passes != 1 {
		t.Errorf("%d passes", r.Passes)
	}
	a.has(t, 5, want)

	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Do: func() {
		if err := b.Remove(t.Context(), 5); err != nil {
			t.Error(err)
		}
		w.pass(2 * time.Hour)
		if _, err := b.Collect(t.Context(), CollectOptions{}); err != nil {
			t.Error(err)
		}
	}})
	want = checkpoint(memory(70, 3))
	if r := a.commit(t, w.image(1, 6, want)); r.Passes != 2 {
		t.Errorf("result %+v", r)
	}
	a.has(t, 6, want)
}

// A commit under which somebody else claims the workload is refused, and nor can what is over be given up: the head stays the other's.
func TestFencedMeanwhile(t *testing.T) {
	w := newWorld(t)
	a, b := w.owner("a"), w.node("b")
	a.commit(t, w.image(1, 1, checkpoint(memory(10, 1))))
	mine, err := a.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Do: func() {
		if _, err := b.Acquire(t.Context(), Claim{TakeOver: true}); err != nil {
			t.Error(err)
		}
	}})
	if r, err := a.Commit(t.Context(), w.image(1, 2, checkpoint(memory(10, 2))), CommitOptions{}); !errors.Is(err, ErrFenced) {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := a.GiveUp(t.Context(), mine.Owner.Claim, mine.Epoch, true); !errors.Is(err, ErrFenced) {
		t.Errorf("given up: %v", err)
	}
	if h, err := b.Head(t.Context()); err != nil || h.Epoch != 2 || h.Owner == nil || h.Owner.Node != "b" || len(h.Generations) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
}

// A base that is dropped while nobody can tell what was condemned isn't relied on.
func TestDroppedBaseWithoutItsList(t *testing.T) {
	w := newWorld(t)
	a, b := w.owner("a"), w.node("b")
	a.commit(t, w.image(1, 1, checkpoint(memory(50, 3))))
	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Do: func() {
		if err := b.Remove(t.Context(), 1); err != nil {
			t.Error(err)
		}
		w.pass(2 * time.Hour)
		if _, err := b.Collect(t.Context(), CollectOptions{}); err != nil {
			t.Error(err)
		}
		for _, name := range w.data("gc/") {
			w.bucket.Alter(full(name), func([]byte) []byte { return nil })
		}
	}})
	want := checkpoint(memory(70, 3))
	if r := a.commit(t, w.image(1, 2, want)); r.Passes != 2 {
		t.Errorf("result %+v", r)
	}
	a.has(t, 2, want)
}

// At one time the head is changed by 4 nodes' collectors and commits: everything that was committed is there.
func TestManyAtOnce(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	const commits = 12
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		n := w.node("c")
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				w.pass(20 * time.Minute)
				if _, err := n.Collect(t.Context(), CollectOptions{}); err != nil && !errors.Is(err, ErrContended) {
					t.Error(err)
					return
				}
			}
		})
	}
	var last []uint64
	for seq := uint64(1); seq <= commits; {
		r, err := a.Commit(t.Context(), w.image(1, seq, checkpoint(memory(150, seq%3))), CommitOptions{})
		if errors.Is(err, ErrContended) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		last = append(last, r.Generation.Sequence)
		h, err := a.Head(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range h.Generations[:min(3, len(h.Generations))] {
			a.has(t, g.Sequence, checkpoint(memory(150, g.Sequence%3)))
		}
		seq++
	}
	close(stop)
	wg.Wait()
	if len(last) != commits || !slices.IsSorted(last) {
		t.Errorf("committed %v", last)
	}
}
