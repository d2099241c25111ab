package upload

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// Each of these is one condition whose loss would lose a snapshot, or end what may go on, and that others mostly stand before.

// known is what the daemon knows of a container.
func (c *copyOf) known() *lineage {
	c.t.Helper()
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	l := c.d.lineages[c.storeName()]
	if l == nil {
		c.t.Fatal("the daemon doesn't know it")
	}
	return l
}

func (c *copyOf) record() record {
	l := c.known()
	c.d.mu.Lock()
	defer c.d.mu.Unlock()
	return l.record
}

// calm fails if the machine takes something for a loss.
func (m *machine) calm() {
	m.t.Helper()
	m.set(func() {
		if len(m.fenced) != 0 || strings.Contains(m.log.String(), "has overtaken") {
			m.t.Errorf("%s takes it for a loss: %v", m.name, m.fenced)
		}
	})
}

// What was given up already is not given up once more, over another node's claim: its sleeper would be ended.
func TestReleasedOnce(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ca.released()
	cb.wakes()
	a.eventually("a has noted that it gave it up", func() bool { return ca.record().Released })
	a.must(a.d.releaseNow(t.Context(), ca.known()))
	a.must(a.d.overtakenBy(ca.known(), ca.record(), ca.storeHead())) // as an upload finds it that comes late
	a.calm()
	if r := ca.record(); r.Overtaken != "" || !r.Released {
		t.Errorf("%+v", r)
	}
}

// What has run without the store's leave is not given up before the store was asked: another node may have run it, too.
func TestUnconfirmedIsNotReleased(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start(func(o *Options) { o.Relaxed = true })
	c := a.container("c", "db")
	c.wakes()
	a.d.store.Script(memstore.Fault{Kind: memstore.Fail, Times: -1})
	a.lease("")
	if r := c.wakes(); !r.Unconfirmed {
		t.Fatalf("%+v", r)
	}
	c.gone() // its shim has died
	a.d.store.Heal()
	a.must(a.d.releaseNow(t.Context(), c.known()))
	if h := c.storeHead(); h.Owner == nil || h.Epoch != 1 {
		t.Errorf("it is given up: %+v", h)
	}
	if r := c.record(); !r.Unconfirmed || !r.claims() {
		t.Errorf("%+v", r)
	}
}

// Nor is it yielded to another node.
func TestUnconfirmedIsNotYielded(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start(func(o *Options) { o.Relaxed = true })
	c := a.container("c", "db")
	c.wakes()
	ask := peer.Ask{Node: "b", Namespace: "default", Identity: "db", Owner: *c.storeHead().Owner, Sequence: 1}
	a.d.store.Script(memstore.Fault{Kind: memstore.Fail, Times: -1})
	a.lease("")
	if r := c.wakes(); !r.Unconfirmed {
		t.Fatalf("%+v", r)
	}
	c.falls(1, memory(5, 1))
	if err := a.d.Yield(t.Context(), ask); !errors.Is(err, peer.ErrRuns) {
		t.Errorf("%v", err)
	}
}

// What came with the right is the workload, though the node has nothing of it yet: it is not given up as one of which nothing is left.
func TestReceivedIsNotReleased(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	b.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if r, err := cb.claim(); err != nil || r.Received == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	l := cb.known()
	b.must(l.take(t.Context())) // the daemon itself takes nothing in meanwhile
	ask := peer.Ask{Node: "b", Namespace: "default", Identity: "db", Owner: *cb.storeHead().Owner}
	if err := b.d.receive(t.Context(), l, &reception{}, ask, ask.Owner); !errors.Is(err, peer.ErrUnavailable) {
		t.Errorf("another one is received over it: %v", err)
	}
	if s, err := snapshot.OpenReceived(cb.right.Received); err != nil || s.Sequence() != 1 {
		t.Errorf("it is not there any more: %v", err)
	}
	cb.gone()
	b.must(os.RemoveAll(cb.dir()))
	l.give()
	b.must(b.d.releaseNow(t.Context(), l))
	if h := cb.storeHead(); h.Owner == nil || h.Owner.Node != "b" {
		t.Errorf("it is given up: %+v", h)
	}
}

// What came of an earlier claim, and was not given up with it, isn't what a later claim's node sleeps with, though it has the same number.
func TestReceivedOfAnEarlierClaim(t *testing.T) {
	var given atomic.Bool
	a, b, c := wired(t, func(what string, _ bool) error {
		if what == "yield" && !given.Load() {
			return peer.ErrUnavailable
		}
		return nil
	})
	ca, cb, cc := a.container("ca", "db"), b.container("cb", "db"), c.container("cc", "db")
	a.keepFromStore()
	c.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if r, err := cb.claim(); !errors.Is(err, durable.ErrOwned) || cb.record().Received == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	a.d.stop()
	c.set(func() { c.dead["a"] = true })
	cc.wakes()
	cc.falls(1, memory(5, 9))
	given.Store(true)
	r, err := cb.claim()
	if err != nil || r.Received == "" || r.From != "c" {
		t.Fatalf("%+v, %v", r, err)
	}
	if m := cb.takesIn(); m.Epoch != 2 {
		t.Errorf("it goes on from epoch %d's", m.Epoch)
	}
}

// What has been taken in is not to be taken in once more, over what has come after it.
func TestTakenInOnce(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if r, err := cb.claim(); err != nil || r.Received == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	cb.takesIn()
	if r, err := cb.claim(); err != nil || r.Received != "" || !r.Whole {
		t.Errorf("%+v, %v", r, err)
	}
}

// A node that has lost its data doesn't take what the store has for all of a workload that ran under its claim.
func TestClaimWhoseNodeForgot(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start()
	c := a.container("c", "db")
	c.wakes()
	c.falls(1, memory(5, 1))
	c.released()
	c.wakes()
	c.gone()
	a.d.stop()
	a.must(errors.Join(os.RemoveAll(c.dir()), os.RemoveAll(filepath.Join(a.data, recordsDir))))
	a.start()
	again := a.container("c", "db")
	if r, err := again.claim(); err != nil || r.Whole || r.Epoch != 3 || !slices.Equal(r.Generations, []Has{{1, 1}}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// An upload claims for a sleeper alone.
func TestUploadClaimsForSleepersOnly(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start()
	c := a.container("c", "db")
	c.localHead(snapshot.Awake, 1)
	if err := a.d.claimFirst(t.Context(), a.d.lineageOf(c.workload())); !errors.Is(err, errNothing) {
		t.Errorf("%v", err)
	}
	if h, err := a.other(c.storeName()).Head(t.Context()); !errors.Is(err, durable.ErrNone) {
		t.Errorf("%+v, %v", h, err)
	}
}

// A node that was not told that what it yielded was taken finds the other's claim in the store, and is calm about it.
func TestNotToldOfAHandOver(t *testing.T) {
	a, b, _ := wired(t, func(what string, _ bool) error {
		if what == "taken" {
			return peer.ErrUnavailable
		}
		return nil
	})
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if _, err := cb.claim(); err != nil {
		t.Fatal(err)
	}
	a.lease("a-2") // which has its claims be confirmed
	a.eventually("a knows whose it is", func() bool { return ca.record().Claim == "" })
	a.calm()
	if r := ca.record(); r.Handed != 1 || r.Overtaken != "" {
		t.Errorf("%+v", r)
	}
}

// What another node uploads doesn't wait for an upload by this one.
func TestHandedIsNotLate(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if _, err := cb.claim(); err != nil {
		t.Fatal(err)
	}
	a.eventually("a knows that it was handed over", func() bool { return ca.record().Handed == 1 })
	a.d.stop()
	before := strings.Count(a.log.String(), "not uploaded")
	a.start()
	other := a.container("other", "other")
	other.wakes()
	other.falls(1, memory(5, 2))
	a.uploaded(a.d, "other", 1) // which is looked at later
	if c, ok := a.d.Copies(key("ca")); !ok || !c.Since.IsZero() || strings.Count(a.log.String(), "not uploaded") != before {
		t.Errorf("%+v, %t", c, ok)
	}
}

// An upload that is under way when another node fetches the same ends: both would pay for it, and the store's head is the other's soon.
func TestFetchEndsAnUpload(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	sending := make(chan struct{}, 100)
	a.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "data/", Kind: memstore.Stall, Times: -1, Do: func() {
		select {
		case sending <- struct{}{}:
		default:
		}
	}})
	ca.wakes()
	ca.falls(1, memory(5, 1))
	a.comes(sending)
	if r, err := cb.claim(); err != nil || r.Received == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	a.eventually("the upload is put off", func() bool { return strings.Contains(a.log.String(), "an upload was put off") })
}

// A store that was emptied begins above what the node has: the epochs of a workload never fall.
func TestClaimsAboveItsOwn(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start()
	c := a.container("c", "db")
	c.wakes()
	c.falls(1, memory(5, 1))
	c.released()
	c.wakes()
	c.falls(2, memory(5, 2))
	c.released()
	a.d.stop()
	a.must(os.RemoveAll(filepath.Join(a.data, ".durable")))
	a.bucket = memstore.NewBucket()
	a.start()
	if r, err := c.claim(); err != nil || r.Epoch != 3 {
		t.Errorf("%+v, %v; the node's own snapshot is of epoch 2", r, err)
	}
}

// told is a context that tells when somebody begins to wait for it.
type told struct {
	context.Context
	waits chan struct{}
}

func (c told) Done() <-chan struct{} {
	select {
	case c.waits <- struct{}{}:
	default:
	}
	return c.Context.Done()
}

// A claim that was lost while a yield waited for its turn isn't yielded.
func TestYieldOfAClaimThatIsLost(t *testing.T) {
	a, _, _ := wired(t, nil)
	ca := a.container("ca", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ask := peer.Ask{Node: "b", Namespace: "default", Identity: "db", Owner: *ca.storeHead().Owner, Sequence: 1}
	l := ca.known()
	a.must(l.take(t.Context()))
	answer, waits := make(chan error, 1), make(chan struct{}, 1)
	go func() { answer <- a.d.Yield(told{t.Context(), waits}, ask) }()
	a.comes(waits)
	a.must(a.d.keepRecord(l, func(r *record) { r.Claim = "another" }))
	l.give()
	if err := <-answer; !errors.Is(err, peer.ErrUnavailable) {
		t.Errorf("%v", err)
	}
	if r := ca.record(); r.Yielded != nil {
		t.Errorf("%+v", r)
	}
}

// What the node has from before another one ran is offered to nobody.
func TestOlderIsNotOffered(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ca.released()
	cb.wakes()
	cb.falls(2, memory(5, 2))
	cb.released()
	if r := ca.asks("one"); r.Epoch != 3 || !slices.Equal(r.Generations, []Has{{2, 2}, {1, 1}}) {
		t.Fatalf("%+v", r)
	}
	ask := peer.Ask{Node: "b", Namespace: "default", Identity: "db", Owner: *ca.storeHead().Owner}
	a.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "heads/", Kind: memstore.Fail, Times: -1}) // it stays claimed
	ca.unused("one")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if s, _, err := a.d.Offer(ctx, ask); !errors.Is(err, peer.ErrRuns) {
		t.Errorf("%v is offered, %v", s, err)
	}
	ask.Sequence = 1
	if err := a.d.Yield(t.Context(), ask); !errors.Is(err, peer.ErrRuns) {
		t.Errorf("it is yielded: %v", err)
	}
	if head, err := snapshot.ReadHead(ca.dir()); err != nil || head.State != snapshot.Asleep || head.Sequence != 1 {
		t.Errorf("%+v, %v", head, err)
	}
	if h := ca.storeHead(); h.State == durable.Asleep {
		t.Errorf("it was given up all the same: %+v", h)
	}
}

// What another node has claimed is not destroyed because it is gone from this one.
func TestExpiredOfAnotherNodes(t *testing.T) {
	w, d, name := slept(t, 1)
	if _, err := w.other(name).Acquire(t.Context(), durable.Claim{TakeOver: true}); err != nil {
		t.Fatal(err)
	}
	d.Expired(key("web"), time.Now().Add(-time.Minute))
	w.must(os.RemoveAll(w.dir("web")))
	d.Left(key("web"))
	w.eventually("it is told", func() bool { return strings.Contains(w.log.String(), "could not be destroyed") })
	if h, err := w.other(name).Head(t.Context()); err != nil || h.Owner == nil || h.Owner.Node != "node-2" || len(h.Generations) != 1 {
		t.Errorf("%+v, %v", h, err)
	}
}

// What still waits to be uploaded of a container that is gone isn't another's, by the same name.
func TestMadeAnewWhileItWaits(t *testing.T) {
	w, d, name := slept(t, 1)
	w.must(os.RemoveAll(w.dir("web")))
	w.sleepAs("web", lineageOf("another"), 2, memory(5, 2))
	w.uploaded(d, "web", 2)
	s, err := newest(w.dir("web"))
	w.must(err)
	d.mu.Lock()
	l := d.lineages[name]
	d.mu.Unlock()
	if there, err := d.wanted(l, s); there || !errors.Is(err, errNothing) {
		t.Errorf("%t, %v", there, err)
	}
}
