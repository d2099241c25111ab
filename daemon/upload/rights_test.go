package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/filestore"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// machine is a node of several that share a bucket: a world with a fence and shims that do as they are told.
type machine struct {
	*world
	name string
	d    *daemon

	mu     sync.Mutex
	term   string // "": no lease
	dead   map[string]bool
	states map[string]string // of shims, by identity
	left   map[string]bool   // identities of which something is recorded
	fenced []string          // identities that were fenced
	seen   time.Duration     // silence of those that are not dead
	judged func()            // called while a claim is being made
}

func newMachine(t *testing.T, bucket *memstore.Bucket, name string) *machine {
	t.Helper()
	m := &machine{
		world: &world{t: t, data: t.TempDir(), bucket: bucket, log: testlog.Buffer{}}, name: name, term: name + "-1", dead: map[string]bool{}, states: map[string]string{}, left: map[string]bool{},
	}
	return m
}

// start starts its daemon, and waits until it knows the store.
func (m *machine) start(set ...func(*Options)) *machine {
	m.t.Helper()
	m.d = m.daemon(append([]func(*Options){func(o *Options) {
		o.Node, o.Incarnation, o.Fence, o.Shims = m.name, fmt.Sprintf("%x", m.name+strings.Repeat("-", 16))[:32], m, m
	}}, set...)...)
	m.eventually("the store is known", func() bool { return m.d.Condition().Fences == FencesYes })
	return m
}

// Term and the others implement Fence and Shims.
func (m *machine) Term() (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term, m.term != ""
}

func (m *machine) Need(context.Context) (string, error) {
	if term, ok := m.Term(); ok {
		return term, nil
	}
	return "", fmt.Errorf("%w: %w", fence.ErrLapsed, store.ErrUnavailable)
}

func (m *machine) Judge(_ context.Context, o durable.Owner) (fence.Verdict, error) {
	m.mu.Lock()
	judged := m.judged
	m.mu.Unlock()
	if judged != nil {
		judged()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return fence.Verdict{Dead: m.dead[o.Node], Silent: m.seen, DeadIn: time.Minute}, nil
}

func (m *machine) State(_ context.Context, _, identity string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states[identity], nil
}

func (m *machine) Recorded(_, identity string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.left[identity] || m.states[identity] != "", nil
}

func (m *machine) Fence(_ context.Context, _, identity string, _ uint64, _ string) (bool, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.fenced = append(m.fenced, identity)
	if m.states[identity] != "" {
		m.states[identity] = "ended"
		return true, nil
	}
	return false, nil
}

func (m *machine) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

// lease gives the machine a lease, of that term; "" takes it away.
func (m *machine) lease(term string) {
	m.set(func() { m.term = term })
	if m.d != nil && term != "" {
		m.d.TermChanged()
	}
}

// copyOf is a container with an identity, with its shim.
type copyOf struct {
	*machine
	t        *testing.T
	id       string
	identity string
	lock     *os.File
	right    Right
	local    Local
}

func (m *machine) container(id, identity string) *copyOf {
	m.t.Helper()
	c := &copyOf{machine: m, t: m.t, id: id, identity: identity}
	dir := c.dir()
	m.must(os.MkdirAll(dir, 0o700))
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	m.must(err)
	m.must(unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	c.lock = f
	m.set(func() { m.states[identity] = "created" })
	if s, err := newest(dir); err == nil {
		c.local = Local{Sequence: s.Sequence(), Epoch: s.Manifest().Epoch}
	}
	m.t.Cleanup(c.gone)
	return c
}

func (c *copyOf) dir() string { return snapshot.DirFor(c.data, "default", c.id, c.identity) }

func (c *copyOf) workload() api.Workload {
	return api.Workload{Namespace: "default", ID: c.id, Identity: c.identity}
}

func (c *copyOf) claim() (Right, error) {
	r, err := c.d.Claim(c.t.Context(), c.workload(), c.local)
	if err == nil {
		c.right = r
	}
	return r, err
}

// wakes has the workload run, which must be allowed.
func (c *copyOf) wakes() Right {
	c.t.Helper()
	c.set(func() { c.states[c.identity] = "waking" })
	r, err := c.claim()
	if err != nil {
		c.t.Fatalf("%s on %s: %v", c.identity, c.name, err)
	}
	c.runs()
	return r
}

func (c *copyOf) runs() {
	seq := c.local.Sequence
	if len(c.right.Generations) > 0 {
		seq = max(seq, c.right.Generations[0].Sequence)
	}
	c.localHead(snapshot.Awake, seq)
	c.set(func() { c.states[c.identity] = "awake" })
}

func (c *copyOf) localHead(state snapshot.State, sequence uint64) {
	c.t.Helper()
	c.document(filepath.Join(c.dir(), "head.json"), "hibernate.head", snapshot.Head{
		State: state, Sequence: sequence, Epoch: c.right.Epoch, Time: time.Now().UTC(), Namespace: "default", ID: c.id, Identity: c.identity, Lineage: lineageOf(c.identity),
	})
}

// falls asleep with a snapshot.
func (c *copyOf) falls(sequence uint64, pages []byte) {
	c.t.Helper()
	c.set(func() { c.states[c.identity] = "hibernating" })
	c.snapshotAt(sequence, pages)
	c.set(func() { c.states[c.identity] = "asleep" })
	c.d.Slept(key(c.id), Wishes{Keep: 3, Identity: c.identity})
}

func (c *copyOf) snapshotAt(sequence uint64, pages []byte) {
	c.t.Helper()
	m := snapshot.Manifest{Sequence: sequence, Epoch: c.right.Epoch, Namespace: "default", ID: c.id, Identity: c.identity, Lineage: lineageOf(c.identity), Created: time.Now().UTC()}
	c.writeSnapshot(filepath.Join(c.dir(), strconv.FormatUint(sequence, 10)), m, pages)
	c.localHead(snapshot.Asleep, sequence)
	if c.local.Sequence != 0 && c.local.Sequence != sequence {
		c.must(os.RemoveAll(filepath.Join(c.dir(), strconv.FormatUint(c.local.Sequence, 10))))
	}
	c.local = Local{Sequence: sequence, Epoch: c.right.Epoch}
}

// gone ends the shim; what is in the directory stays.
func (c *copyOf) gone() {
	if c.lock != nil {
		_ = c.lock.Close()
		c.lock = nil
		c.set(func() { delete(c.states, c.identity) })
	}
}

func (c *copyOf) storeName() string { return c.d.nameFor(c.workload()) }

// head is the one in the store.
func (c *copyOf) storeHead() durable.Head {
	c.t.Helper()
	h, err := c.other(c.storeName()).Head(c.t.Context())
	c.must(err)
	return h
}

func (c *copyOf) released() {
	c.t.Helper()
	c.eventually(c.identity+" is given up by "+c.name, func() bool {
		h, err := c.other(c.storeName()).Head(c.t.Context())
		return err == nil && h.Owner == nil
	})
}

// A workload goes from node to node: claimed when it runs, given up when the store has what it went to sleep with. Nobody else may
// run it meanwhile.
func TestBackAndForth(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	copies := []*copyOf{a.container("ca", "db"), b.container("cb", "db")}
	for round := range uint64(6) {
		c, other := copies[round%2], copies[(round+1)%2]
		r := c.wakes()
		if r.Epoch != round+1 || !r.Whole || !r.Leased || r.Unconfirmed {
			t.Fatalf("round %d: %+v", round, r)
		}
		if former := ""; round > 0 {
			if former = other.name; r.Former != former || r.Generations[0] != (Has{round, round}) {
				t.Errorf("round %d: %+v", round, r)
			}
		}
		var silent *SilentError
		if _, err := other.claim(); !errors.As(err, &silent) || !errors.Is(err, durable.ErrOwned) || !strings.Contains(err.Error(), c.name) {
			t.Fatalf("round %d: the other may run, too: %v", round, err)
		}
		c.falls(round+1, memory(20, byte(round)))
		c.released()
		if got := c.sequences(c.storeName()); got[0] != round+1 {
			t.Errorf("round %d: %v", round, got)
		}
	}
}

// While it is claimed nobody is asked, and nothing is given up that runs, or may.
func TestHeldFromMemory(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start()
	c := a.container("c", "db")
	c.wakes()
	rev := c.storeHead().Revision
	a.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "data/", Kind: memstore.Fail, Times: -1}) // nothing is uploaded
	c.falls(1, memory(5, 1))
	for range 5 {
		if r := c.wakes(); r.Epoch != 1 || !r.Whole || len(r.Generations) != 0 {
			t.Errorf("%+v", r)
		}
		c.localHead(snapshot.Asleep, 1) // it has not come to run
		c.set(func() { c.states["db"] = "asleep" })
	}
	// The snapshot comes to be uploaded, but who was granted the right may still use it.
	a.d.store.Heal()
	a.uploaded(a.d, "c", 1)
	time.Sleep(20 * time.Millisecond)
	if h := c.storeHead(); h.Owner == nil || h.Epoch != 1 {
		t.Fatalf("what may run is given up: %+v, revision %d was %d", h, h.Revision, rev)
	}
	c.runs()
	c.falls(2, memory(5, 2))
	c.released()
}

// A node that is dead is taken over from, with what it slept with last; what it finds when it comes back it may not run, nor commit.
func TestTakeOver(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ca.released()
	ca.wakes()
	a.d.stop()
	b.set(func() { b.seen = 12 * time.Second })
	if _, err := cb.claim(); err == nil || !strings.Contains(err.Error(), "nothing for 12s") || !strings.Contains(err.Error(), "1m0s") {
		t.Fatalf("%v", err)
	}
	b.set(func() { b.dead["a"] = true })
	r := cb.wakes()
	if r.Epoch != 3 || r.Whole || r.Former != "a" || !slices.Equal(r.Generations, []Has{{1, 1}}) {
		t.Errorf("%+v", r)
	}
	// The shim of a has put it to sleep when the lease ended. Its daemon comes back.
	ca.snapshotAt(2, memory(5, 2))
	a.set(func() { a.states["db"] = "asleep" })
	a.term = "a-2"
	a.start()
	a.eventually("a hears that it was overtaken", func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.fenced) > 0
	})
	if _, err := ca.claim(); !errors.Is(err, durable.ErrOwned) {
		t.Errorf("%v", err)
	}
	cb.falls(2, memory(5, 3))
	cb.released()
	if h := cb.storeHead(); h.Epoch != 3 || h.Generations[0].Epoch != 3 || h.Last != "b" {
		t.Errorf("%+v", h)
	}
	// And a may run it again, from what b has made of it.
	if r := ca.wakes(); r.Epoch != 4 || !r.Whole || r.Former != "b" || r.Generations[0] != (Has{2, 3}) {
		t.Errorf("%+v", r)
	}
	time.Sleep(20 * time.Millisecond)
	if got := ca.sequences(ca.storeName()); !slices.Equal(got, []uint64{2, 1}) || ca.storeHead().Generations[0].Epoch != 3 {
		t.Errorf("what was overtaken is committed: %v", got)
	}
	ca.local = Local{Sequence: 2, Epoch: 3} // as it was restored
	ca.falls(3, memory(5, 4))
	ca.released()
	if got := ca.sequences(ca.storeName()); got[0] != 3 {
		t.Errorf("%v", got)
	}
}

// What was claimed before the lease lapsed is this node's only once the store has said so again, and by a change there: who has looked at
// it meanwhile looks again.
func TestLapsedClaim(t *testing.T) {
	a := newMachine(t, memstore.NewBucket(), "a").start()
	c := a.container("c", "db")
	c.wakes()
	a.lease("")
	if _, err := c.claim(); !errors.Is(err, fence.ErrLapsed) {
		t.Errorf("without a lease: %v", err)
	}
	a.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "heads/", Kind: memstore.Fail, Times: -1})
	a.lease("a-2")
	if _, err := c.claim(); err == nil {
		t.Error("it is given though the store could not be changed")
	}
	before := c.storeHead()
	a.d.store.Heal()
	r, err := c.claim()
	if err != nil || r.Epoch != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
	if now := c.storeHead(); now.Revision <= before.Revision || now.Nonce == before.Nonce {
		t.Error("the head is as it was")
	}
	if r.Whole {
		t.Error("it ran, and is said to be whole")
	}
}

// A release whose answer is not known is not relied on, either way.
func TestReleaseUnknown(t *testing.T) {
	for what, kind := range map[string]memstore.Kind{"made": memstore.StallAfter, "not made": memstore.Stall} {
		t.Run(what, func(t *testing.T) {
			a := newMachine(t, memstore.NewBucket(), "a").start(func(o *Options) { o.releaseWithin = 50 * time.Millisecond })
			c := a.container("c", "db")
			c.wakes()
			hung := make(chan struct{})
			// The second write of the head: the first is the commit's.
			a.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "heads/", Skip: 1, Kind: kind, Do: sync.OnceFunc(func() { close(hung) })})
			c.falls(1, memory(5, 1))
			<-hung
			r := c.wakes()
			if want := map[bool]uint64{true: 2, false: 1}[kind == memstore.StallAfter]; r.Epoch != want || !r.Whole || r.Former != "" {
				t.Errorf("%+v", r)
			}
			if h := c.storeHead(); h.Owner == nil || h.Epoch != r.Epoch {
				t.Errorf("%+v", h)
			}
			c.falls(2, memory(5, 2))
			c.released()
		})
	}
}

// A daemon that is killed in the middle of a claim or a release, before or after what it was at was done, leaves nothing that the next one
// doesn't put right: the workload runs here, and then elsewhere, and never in two places.
func TestKilledAtEachStep(t *testing.T) {
	died := errors.New("the daemon has died")
	for _, done := range []bool{false, true} {
		for step := range 12 {
			t.Run(fmt.Sprint(step, done), func(t *testing.T) {
				bucket := memstore.NewBucket()
				a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
				ca, cb := a.container("ca", "db"), b.container("cb", "db")
				var mu sync.Mutex
				left, dead := step, false
				a.d.store.Before(func(op memstore.Op, name string) memstore.Fault {
					mu.Lock()
					defer mu.Unlock()
					if dead {
						return memstore.Fault{Kind: memstore.Fail, Err: died}
					}
					if op != memstore.Put {
						return memstore.Fault{}
					}
					if left--; left >= 0 {
						return memstore.Fault{}
					}
					dead = true
					if done {
						return memstore.Fault{Kind: memstore.LoseAnswer}
					}
					return memstore.Fault{Kind: memstore.Fail, Err: died}
				})
				ran := false
				if _, err := ca.claim(); err == nil {
					ran = true
					ca.runs()
					ca.falls(1, memory(5, 1))
					time.Sleep(30 * time.Millisecond)
				}
				a.d.stop()
				a.set(func() { a.term = "a-2" })
				a.start()
				if r := ca.wakes(); ran && !r.Whole {
					t.Errorf("%+v", r)
				}
				if _, err := cb.claim(); !errors.Is(err, durable.ErrOwned) {
					t.Fatalf("it runs on a, and b may run it: %v", err)
				}
				ca.falls(2, memory(5, 2))
				ca.released()
				if r := cb.wakes(); !r.Whole || r.Generations[0].Sequence != 2 {
					t.Errorf("%+v", r)
				}
			})
		}
	}
}

// A claim that was made, and of which the daemon has died before it could write that down, doesn't keep others from the workload when
// nobody asks for it here again.
func TestForgottenClaim(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca := a.container("ca", "db")
	a.d.store.Script(memstore.Fault{Op: memstore.Put, Name: "heads/", Kind: memstore.LoseAnswer, Times: -1}, memstore.Fault{Op: memstore.Get, Name: "heads/", Skip: 1, Kind: memstore.Fail, Times: -1})
	if _, err := ca.claim(); err == nil {
		t.Fatal("a claim that nobody knows of is given")
	}
	a.d.stop()
	ca.gone()
	a.must(os.RemoveAll(ca.dir()))
	a.start()
	ca.released()
	if r := b.container("cb", "db").wakes(); r.Epoch != 2 || r.Former != "a" {
		t.Errorf("%+v", r)
	}
}

// Who has taken over, and died before it ran anything, leaves it as it was: what the dead one did is lost all the same.
func TestUnusedClaim(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	cb.wakes()
	cb.falls(1, memory(5, 1)) // the node has this from an earlier time
	cb.released()
	ca.wakes()
	a.d.stop()
	b.set(func() { b.dead["a"] = true })
	if r, err := cb.claim(); err != nil || r.Whole || r.Epoch != 3 {
		t.Fatalf("%+v, %v", r, err)
	}
	cb.gone()
	b.d.Left(key("cb"))
	cb.released()
	if r, err := b.container("cb2", "db").claim(); err != nil || r.Whole || r.Epoch != 4 {
		t.Errorf("%+v, %v", r, err)
	}
}

// A container that has ended with its snapshot kept asleep leaves it to any node, and so does one that has ended for good; then what
// the store has is not all of it. What was awake when its shim died stays this node's.
func TestEnded(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	kept, over, crashed := a.container("1", "kept"), a.container("2", "over"), a.container("3", "crashed")
	for _, c := range []*copyOf{kept, over, crashed} {
		c.wakes()
	}
	kept.snapshotAt(1, memory(5, 1)) // on-stop = hibernate: the shim ends at once
	kept.gone()
	over.falls(1, memory(5, 1))
	over.released()
	over.wakes()
	over.gone()
	a.must(os.RemoveAll(over.dir()))
	a.set(func() { a.left["crashed"] = true })
	crashed.gone()
	for _, id := range []string{"1", "2", "3"} {
		a.d.Left(key(id))
	}
	kept.released()
	over.released()
	if r := b.container("b1", "kept").wakes(); !r.Whole || r.Former != "a" || r.Generations[0] != (Has{1, 1}) {
		t.Errorf("%+v", r)
	}
	if r := b.container("b2", "over").wakes(); r.Whole || r.Former != "a" || r.Generations[0] != (Has{1, 1}) {
		t.Errorf("%+v", r)
	}
	if _, err := b.container("b3", "crashed").claim(); !errors.Is(err, durable.ErrOwned) {
		t.Errorf("%v", err)
	}
}

// With fencing = relaxed the last owner goes on while the store is away. When it is back, and nobody came between, it is its again; where
// somebody did, the copy is ended.
// TestShimDied: what ran when its shim died is another node's once nothing of it is left here, and not before; and it is not whole.
func TestShimDied(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ca.released()
	ca.wakes()
	a.set(func() { a.left["db"] = true })
	ca.gone()
	a.d.Left(key("ca"))
	time.Sleep(100 * time.Millisecond) // a release would come by then
	if _, err := cb.claim(); !errors.Is(err, durable.ErrOwned) {
		t.Fatalf("its sandbox may still run: %v", err)
	}
	a.set(func() { a.left["db"] = false })
	a.d.Left(key("ca"))
	a.eventually("it is given up", func() bool { _, err := cb.claim(); return err == nil })
	if cb.right.Whole || cb.right.Former != "a" {
		t.Errorf("%+v", cb.right)
	}
}

func TestRelaxed(t *testing.T) {
	for _, overtaken := range []bool{false, true} {
		t.Run(fmt.Sprint(overtaken), func(t *testing.T) {
			bucket := memstore.NewBucket()
			relaxed := func(o *Options) { o.Relaxed = true }
			a, b := newMachine(t, bucket, "a").start(relaxed), newMachine(t, bucket, "b").start(relaxed)
			ca, stranger := a.container("ca", "db"), a.container("cs", "never seen")
			if r := ca.wakes(); r.Leased {
				t.Errorf("%+v", r)
			}
			ca.falls(1, memory(5, 1))
			ca.released()
			a.d.store.Script(memstore.Fault{Kind: memstore.Fail, Times: -1})
			a.lease("")
			r := ca.wakes()
			if !r.Unconfirmed || r.Leased || !r.Whole || r.Epoch != 1 || r.Generations[0] != (Has{1, 1}) {
				t.Errorf("%+v", r)
			}
			if _, err := stranger.claim(); err == nil {
				t.Error("a workload that was never here runs without the store")
			}
			if overtaken {
				b.container("cb", "db").wakes()
			}
			a.d.stop() // and it is remembered by the next
			a.start(relaxed, func(o *Options) { a.term = "a-2" })
			if overtaken {
				a.eventually("the copy is ended", func() bool {
					a.mu.Lock()
					defer a.mu.Unlock()
					return slices.Contains(a.fenced, "db")
				})
				return
			}
			a.eventually("it is claimed again", func() bool { h := ca.storeHead(); return h.Owner != nil && h.Epoch == 2 })
			ca.falls(2, memory(5, 2)) // under the epoch that it was told
			ca.released()
			if h := ca.storeHead(); h.Generations[0].Sequence != 2 || h.Generations[0].Epoch != 1 || len(a.fenced) != 0 {
				t.Errorf("%+v, fenced %v", h, a.fenced)
			}
		})
	}
}

// What nobody can decide but a person is refused; and a store that can't fence makes the identity the node's own.
func TestClaimRefused(t *testing.T) {
	bucket := memstore.NewBucket()
	a := newMachine(t, bucket, "a").start()
	c := a.container("c", "db")
	c.wakes()
	old := bucket.Body("heads/" + c.storeName())
	c.falls(1, memory(5, 1))
	c.released()
	c.wakes()
	bucket.Alter("heads/"+c.storeName(), func([]byte) []byte { return old })
	a.lease("a-2")
	if _, err := c.claim(); !errors.Is(err, durable.ErrRolledBack) {
		t.Errorf("a head that was put back: %v", err)
	}
	bucket.Alter("heads/"+c.storeName(), func([]byte) []byte { return nil })
	if _, err := c.claim(); !errors.Is(err, durable.ErrRolledBack) {
		t.Errorf("a head that is gone: %v", err)
	}
	// A node that has forgotten all but the snapshot.
	b := newMachine(t, memstore.NewBucket(), "b").start()
	d := b.container("d", "db")
	if _, err := b.other(d.storeName()).Acquire(t.Context(), durable.Claim{}); err != nil {
		t.Fatal(err)
	}
	d.local = Local{Sequence: 3, Epoch: 5}
	b.set(func() { b.dead["node-2"] = true })
	if _, err := d.claim(); !errors.Is(err, durable.ErrRolledBack) {
		t.Errorf("a head that is older than the node's snapshot: %v", err)
	}
	if _, err := b.d.Claim(t.Context(), api.Workload{Namespace: "default", ID: "x"}, Local{}); !errors.Is(err, ErrInvalid) {
		t.Errorf("%v", err)
	}
	gone := b.container("e", "gone")
	gone.wakes()
	tier := b.other(gone.storeName())
	_, err := tier.Acquire(t.Context(), durable.Claim{TakeOver: true})
	b.must(errors.Join(err, tier.Destroy(t.Context())))
	b.lease("b-2")
	gone.local = Local{Sequence: 1, Epoch: 1}
	if _, err := gone.claim(); !errors.Is(err, durable.ErrDestroyed) {
		t.Errorf("%v", err)
	}
	gone.local = Local{}
	if r, err := gone.claim(); err != nil || !r.Whole {
		t.Errorf("a workload that begins anew: %+v, %v", r, err)
	}
}

// The snapshots of a workload that is gone from this node, and that another one runs or has run since, are left alone, whatever its
// delete-after says.
func TestGoneFromHereOnly(t *testing.T) {
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	names := map[string]string{}
	for _, identity := range []string{"runs there", "slept there", "nobody's"} {
		c := a.container("a "+identity, identity)
		names[identity] = c.storeName()
		c.wakes()
		c.falls(1, memory(5, 1))
		c.released()
		c.gone()
	}
	runs, slept := b.container("b1", "runs there"), b.container("b2", "slept there")
	runs.wakes()
	slept.wakes()
	slept.falls(2, memory(5, 2))
	slept.released()
	asleep := time.Now()
	for identity := range names {
		a.must(os.RemoveAll(snapshot.DirFor(a.data, "default", "", identity)))
		a.d.Expired(key("a "+identity), asleep)
	}
	a.eventually("what is nobody's is destroyed", func() bool {
		_, err := a.other(names["nobody's"]).Head(t.Context())
		return errors.Is(err, durable.ErrDestroyed)
	})
	time.Sleep(50 * time.Millisecond)
	for _, c := range []*copyOf{runs, slept} {
		if h := c.storeHead(); len(h.Generations) == 0 || h.State == durable.Deleted {
			t.Errorf("%s: %+v", c.identity, h)
		}
	}
}

// The same over a directory that two nodes reach.
func TestBackAndForthInADirectory(t *testing.T) {
	shared := t.TempDir()
	open := func(o *Options) {
		o.Open = func() (store.Store, error) { return filestore.Open(shared) }
	}
	bucket := memstore.NewBucket() // not used
	a, b := newMachine(t, bucket, "a").start(open), newMachine(t, bucket, "b").start(open)
	copies := []*copyOf{a.container("ca", "db"), b.container("cb", "db")}
	for round := range uint64(4) {
		c, other := copies[round%2], copies[(round+1)%2]
		if r := c.wakes(); r.Epoch != round+1 || !r.Whole {
			t.Fatalf("round %d: %+v", round, r)
		}
		if _, err := other.claim(); !errors.Is(err, durable.ErrOwned) {
			t.Fatalf("round %d: %v", round, err)
		}
		c.falls(round+1, memory(5, byte(round)))
		c.eventually("it is given up", func() bool {
			list, err := c.d.List(t.Context(), c.storeName())
			return err == nil && list[0].Head.Owner == nil && list[0].Head.Last == c.name
		})
	}
}

// What a node had not uploaded when another one took over is never committed, whether that one has left a snapshot or not.
func TestOvertakenIsNotCommitted(t *testing.T) {
	a, ca := overtaken(t)
	if r, err := ca.claim(); err != nil || r.Epoch != 4 || r.Whole || r.Former != "b" {
		t.Fatalf("%+v, %v", r, err)
	}
	// ErrFenced where the upload was begun under the claim that is over, before the new one; ErrOvertaken where it was begun after it. Which of
	// both it is, the uploader's start decides: neither commits.
	a.eventually("it is told that it can't be uploaded", func() bool {
		c, ok := a.d.Copies(key("ca"))
		return ok && (errors.Is(c.Err, ErrOvertaken) || errors.Is(c.Err, durable.ErrFenced)) && c.Final
	})
	if got := ca.sequences(ca.storeName()); !slices.Equal(got, []uint64{1}) {
		t.Errorf("%v", got)
	}
}

// overtaken is a node with snapshot 5 of a workload, which ran from snapshot 1 on another one since, that is dead.
func overtaken(t *testing.T) (*machine, *copyOf) {
	t.Helper()
	bucket := memstore.NewBucket()
	a, b := newMachine(t, bucket, "a").start(), newMachine(t, bucket, "b").start()
	ca, cb := a.container("ca", "db"), b.container("cb", "db")
	ca.wakes()
	ca.falls(1, memory(5, 1))
	ca.released()
	ca.wakes()
	a.d.stop()
	ca.snapshotAt(5, memory(5, 5))
	b.set(func() { b.dead["a"] = true })
	cb.wakes()
	b.d.stop()
	a.set(func() { a.term, a.dead["b"] = "a-2", true })
	a.start()
	return a, ca
}

// Nor where the upload was begun before the claim under which it would commit.
func TestOvertakenWhileItWaits(t *testing.T) {
	a, ca := overtaken(t)
	a.eventually("it is told that it can't be uploaded", func() bool {
		c, ok := a.d.Copies(key("ca"))
		return ok && c.Final
	})
	l := a.d.lineageOf(ca.workload())
	result := make(chan error, 1)
	a.set(func() {
		a.judged = func() {
			go func() {
				_, err := a.d.send(t.Context(), l)
				result <- err
			}()
			a.eventually("the upload waits for its turn", func() bool {
				a.d.mu.Lock()
				defer a.d.mu.Unlock()
				return l.sending == 5
			})
		}
	})
	if r, err := ca.claim(); err != nil || r.Epoch != 4 {
		t.Fatalf("%+v, %v", r, err)
	}
	if err := <-result; !errors.Is(err, ErrOvertaken) {
		t.Errorf("it says %v", err)
	}
	if got := ca.sequences(ca.storeName()); !slices.Equal(got, []uint64{1}) {
		t.Errorf("%v", got)
	}
}
