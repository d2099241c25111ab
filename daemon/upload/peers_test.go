package upload

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// wire is the peer path without a network.
type wire struct {
	me string
	of func(node string) *Uploader // nil: it can't be reached
	// trouble, where it isn't nil, is asked before and after each request.
	trouble func(what string, after bool) error
	wait    time.Duration // of a fetch; 0: as it was asked for
}

func (w wire) do(ctx context.Context, what string, a peer.Ask, do func(ctx context.Context, u *Uploader, a peer.Ask) error) error {
	a.Node = w.me
	u := w.of(a.Owner.Node)
	if u == nil {
		return fmt.Errorf("%w: nobody is there", peer.ErrUnavailable)
	}
	for _, after := range []bool{false, true} {
		if w.trouble != nil {
			if err := w.trouble(what, after); err != nil {
				return err
			}
		}
		if !after {
			if err := do(ctx, u, a); err != nil {
				return err
			}
		}
	}
	return nil
}

// Fetch and the others implement Peers.
func (w wire) Fetch(ctx context.Context, a peer.Ask, dir string, tell func(done, all int64)) (got *snapshot.Snapshot, err error) {
	err = w.do(ctx, "fetch", a, func(ctx context.Context, u *Uploader, a peer.Ask) error {
		ctx, cancel := context.WithTimeout(ctx, cmp.Or(w.wait, a.Wait))
		defer cancel()
		s, sent, err := u.Offer(ctx, a)
		if err != nil {
			return err
		}
		defer sent()
		t, err := s.Stream()
		if err != nil {
			return fmt.Errorf("%w: %w", peer.ErrUnavailable, err)
		}
		defer t.Close()
		var all bytes.Buffer
		if err := t.Send(ctx, func(p []byte) error { _, err := all.Write(p); return err }); err != nil {
			return fmt.Errorf("%w: %w", peer.ErrUnavailable, err)
		}
		r, err := snapshot.NewReceiving(dir, t.Document())
		if err != nil {
			return err
		}
		got, err = r.Take(ctx, &all, func(n int64) { tell(n, r.Size()) })
		return err
	})
	return got, err
}

func (w wire) Yield(ctx context.Context, a peer.Ask) error {
	return w.do(ctx, "yield", a, func(ctx context.Context, u *Uploader, a peer.Ask) error { return u.Yield(ctx, a) })
}

func (w wire) Taken(ctx context.Context, a peer.Ask) error {
	return w.do(ctx, "taken", a, func(_ context.Context, u *Uploader, a peer.Ask) error { u.Taken(a); return nil })
}

// wired has machines ask each other. trouble is b's.
func wired(t *testing.T, trouble func(what string, after bool) error) (a, b, c *machine) {
	bucket := memstore.NewBucket()
	all := map[string]*machine{}
	var ready atomic.Bool
	of := func(node string) *Uploader {
		if m := all[node]; ready.Load() && m.d != nil {
			return m.d.Uploader
		}
		return nil
	}
	for _, name := range []string{"a", "b", "c"} {
		w := wire{me: name, of: of}
		if name == "b" {
			w.trouble = trouble
		}
		all[name] = newMachine(t, bucket, name).start(func(o *Options) { o.Peers = w })
	}
	ready.Store(true)
	return all["a"], all["b"], all["c"]
}

// keepFromStore has nothing of a machine's be uploaded.
func (m *machine) keepFromStore() {
	m.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "data/", Kind: memstore.Fail, Times: -1})
}

// takesIn is what the shim does with what came with its right.
func (c *copyOf) takesIn() snapshot.Manifest {
	c.t.Helper()
	s, err := snapshot.OpenReceived(c.right.Received)
	if err != nil {
		c.t.Fatal(err)
	}
	m := s.Manifest()
	c.must(os.CopyFS(filepath.Join(c.dir(), strconv.FormatUint(m.Sequence, 10)), os.DirFS(c.right.Received)))
	c.document(filepath.Join(c.dir(), "head.json"), "hibernate.head", snapshot.Head{
		State: snapshot.Asleep, Sequence: m.Sequence, Epoch: c.right.Epoch, Time: time.Now().UTC(), Namespace: "default", ID: c.id, Identity: c.identity, Lineage: m.Lineage,
	})
	c.local = Local{Sequence: m.Sequence, Epoch: m.Epoch}
	return m
}

// A sleeper that the store doesn't have yet comes straight from its node, whole, and is then this node's to upload. Its former node is calm about it.
func TestHandedOver(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(50, 1))
	r, err := cb.claim()
	if err != nil {
		t.Fatal(err)
	}
	if r.Epoch != 2 || !r.Whole || r.Former != "a" || len(r.Generations) != 0 || r.Received == "" || r.From != "a" {
		t.Fatalf("%+v", r)
	}
	if again, err := cb.claim(); err != nil || again.Received != r.Received || again.Epoch != 2 { // whose answer was lost
		t.Errorf("%+v, %v", again, err)
	}
	if m := cb.takesIn(); m.Sequence != 1 || m.Epoch != 1 {
		t.Errorf("%+v", m)
	}
	cb.runs()
	b.eventually("b uploads it", func() bool { return slices.Equal(b.sequences(cb.storeName()), []uint64{1}) })
	if h := cb.storeHead(); h.Epoch != 2 || h.Owner == nil || h.Owner.Node != "b" || h.Generations[0].Epoch != 1 {
		t.Errorf("%+v", h)
	}
	b.eventually("what was sent isn't kept twice", func() bool { _, err := os.Stat(r.Received); return errors.Is(err, os.ErrNotExist) })
	a.eventually("a knows that it was handed over", func() bool { return strings.Contains(a.log.String(), "was handed over") })
	a.d.store.Heal()
	cb.falls(2, memory(50, 2))
	cb.released()
	if r := ca.wakes(); r.Epoch != 3 || !r.Whole || r.Former != "b" || r.Received != "" || r.Generations[0] != (Has{2, 2}) {
		t.Errorf("%+v", r)
	}
	a.set(func() {
		if len(a.fenced) != 0 || strings.Contains(a.log.String(), "overtaken") || strings.Contains(a.log.String(), "not tried again") {
			t.Errorf("a takes it for a loss: %v\n%s", a.fenced, a.log.String())
		}
	})
}

// What there is no room for isn't received, nor kept: it comes by the store, once that has it.
func TestNoRoomToReceive(t *testing.T) {
	a, b, _ := wired(t, nil)
	asked := int64(0)
	b.d.opts.Room = func(bytes int64) error { asked = bytes; return errors.New("the disk is full") }
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(50, 1))
	r, err := cb.claim()
	if err == nil || !strings.Contains(err.Error(), "the disk is full") || asked == 0 {
		t.Fatalf("%+v, %v, asked for %d bytes", r, err, asked)
	}
	if _, err := os.Stat(b.d.receivedDir(cb.storeName())); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("it is kept: %v", err)
	}
	a.d.store.Heal()
	b.eventually("it comes by the store", func() bool { r, err = cb.claim(); return err == nil })
	if r.Epoch != 2 || r.Received != "" || len(r.Generations) != 1 {
		t.Errorf("%+v", r)
	}
}

// Whoever wakes at home after it was given up, and before the other node has taken it, has it: the other's change of the head comes too late.
func TestYieldedAndWokenAtHome(t *testing.T) {
	var ca *copyOf
	woken := false
	a, b, _ := wired(t, func(what string, after bool) error {
		if what == "yield" && after && !woken {
			woken = true
			if r := ca.wakes(); r.Epoch != 1 {
				t.Errorf("%+v", r)
			}
		}
		return nil
	})
	ca = a.container("ca", "db")
	cb := b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(50, 1))
	if r, err := cb.claim(); !errors.Is(err, durable.ErrOwned) {
		t.Fatalf("both run: %+v, %v", r, err)
	}
	if h := ca.storeHead(); !woken || h.Owner == nil || h.Owner.Node != "a" || h.Epoch != 1 {
		t.Errorf("%+v", h)
	}
	ca.falls(2, memory(50, 2))
	if r, err := cb.claim(); err != nil || r.Epoch != 2 || !r.Whole {
		t.Fatalf("%+v, %v", r, err)
	}
	if m := cb.takesIn(); m.Sequence != 2 {
		t.Errorf("it has %d", m.Sequence)
	}
}

// Nobody gives away what runs, may run, or is another claim's.
func TestYieldRefuses(t *testing.T) {
	a, _, _ := wired(t, nil)
	ca := a.container("ca", "db")
	a.keepFromStore()
	ca.wakes()
	ask := peer.Ask{Node: "b", Namespace: "default", Identity: "db", Owner: *ca.storeHead().Owner, Sequence: 1}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, _, err := a.d.Offer(ctx, ask); !errors.Is(err, peer.ErrRuns) {
		t.Errorf("what runs is offered: %v", err)
	}
	refused := func(what string, want error, change func(*peer.Ask)) {
		t.Helper()
		ask := ask
		change(&ask)
		if err := a.d.Yield(t.Context(), ask); !errors.Is(err, want) {
			t.Errorf("%s: %v", what, err)
		}
	}
	same := func(*peer.Ask) {}
	refused("it runs", peer.ErrRuns, same)
	ca.falls(1, memory(5, 1))
	refused("another sequence", peer.ErrRuns, func(a *peer.Ask) { a.Sequence = 2 })
	refused("another claim", peer.ErrUnavailable, func(a *peer.Ask) { a.Owner.Claim = "0" })
	refused("an unknown workload", peer.ErrUnavailable, func(a *peer.Ask) { a.Identity = "other" })
	ca.set(func() { ca.states["db"] = "waking" })
	refused("it wakes", peer.ErrRuns, same)
	if _, err := ca.claim(); err != nil {
		t.Fatal(err)
	}
	ca.set(func() { ca.states["db"] = "asleep" })
	refused("it was granted since", peer.ErrRuns, same)
	ca.falls(2, memory(5, 2))
	refused("another one since", peer.ErrRuns, same)
	refused("nothing", nil, func(a *peer.Ask) { a.Sequence = 2 })
	refused("nothing, once more", nil, func(a *peer.Ask) { a.Sequence = 2 })
}

// The node that has it dies before the store has: who comes after it knows that what the store has is not all.
func TestDiesBeforeItsUpload(t *testing.T) {
	a, b, c := wired(t, nil)
	ca, cb, cc := a.container("ca", "db"), b.container("cb", "db"), c.container("cc", "db")
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ca.released()
	a.keepFromStore()
	ca.wakes()
	ca.falls(2, memory(5, 2))
	b.keepFromStore()
	if r, err := cb.claim(); err != nil || r.Received == "" || !r.Whole || r.Generations[0] != (Has{1, 1}) {
		t.Fatalf("%+v, %v", r, err)
	}
	b.d.stop()
	c.set(func() { c.dead["b"] = true })
	r, err := cc.claim()
	if err != nil || r.Whole || r.Former != "b" || r.Generations[0] != (Has{1, 1}) || r.Received != "" {
		t.Errorf("%+v, %v", r, err)
	}
	if s, err := newest(ca.dir()); err != nil || s.Sequence() != 2 {
		t.Errorf("a has not kept it: %v", err)
	}
}

// A container that is given up before it has taken in what came with its right: the daemon does, and uploads it. Another daemon, too.
func TestTakenInByTheDaemon(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if r, err := cb.claim(); err != nil || r.Received == "" {
		t.Fatalf("%+v, %v", r, err)
	}
	b.d.stop()
	cb.gone()
	b.must(os.RemoveAll(cb.dir()))
	b.start()
	cb.released()
	if h := cb.storeHead(); h.State != durable.Asleep || h.Epoch != 2 || len(h.Generations) != 1 || h.Last != "b" {
		t.Errorf("%+v", h)
	}
	head, err := snapshot.ReadHead(cb.dir())
	if err != nil || head.State != snapshot.Asleep || head.Sequence != 1 {
		t.Errorf("%+v, %v", head, err)
	}
}

// Somebody who isn't who he should be stops the claim; a node that can't be asked doesn't.
func TestPeerStops(t *testing.T) {
	fail := error(&peer.IdentityError{What: "another key", Do: "look"})
	a, b, _ := wired(t, func(string, bool) error { return fail })
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	if _, err := cb.claim(); !errors.Is(err, fail) || errors.Is(err, durable.ErrOwned) {
		t.Errorf("%v", err)
	}
	fail = fmt.Errorf("%w: refused", peer.ErrUnavailable)
	var silent *SilentError
	if _, err := cb.claim(); !errors.As(err, &silent) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%v", err)
	}
	a.d.store.Heal()
	ca.released()
	if r, err := cb.claim(); err != nil || !r.Whole || r.Received != "" || r.Generations[0] != (Has{1, 1}) {
		t.Errorf("%+v, %v", r, err)
	}
}

// A daemon that is killed between its change of the head and its note of that has what it received, and it counts.
func TestDiesWhileItClaims(t *testing.T) {
	a, b, _ := wired(t, nil)
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	a.keepFromStore()
	ca.wakes()
	ca.falls(1, memory(5, 1))
	claimed := false
	b.d.store.Before(func(op memstore.Op, name string) memstore.Fault {
		if strings.HasPrefix(name, "heads/") && op == memstore.Put {
			claimed = true
			return memstore.Fault{Kind: memstore.LoseAnswer}
		}
		if claimed {
			return memstore.Fault{Kind: memstore.Fail}
		}
		return memstore.Fault{}
	})
	if r, err := cb.claim(); err == nil {
		t.Fatalf("%+v", r)
	}
	b.d.stop()
	b.start()
	b.eventually("its claim is found", func() bool { return b.d.AnyClaimed() && cb.storeHead().Owner.Node == "b" })
	var r Right
	b.eventually("it has the right", func() (ok bool) {
		var err error
		r, err = cb.claim()
		return err == nil
	})
	if r.Epoch != 2 && r.Epoch != 3 || !r.Whole || r.Received == "" { // 3 where the shim asked before the daemon had found its claim
		t.Fatalf("%+v", r)
	}
	if m := cb.takesIn(); m.Sequence != 1 {
		t.Errorf("%+v", m)
	}
}
