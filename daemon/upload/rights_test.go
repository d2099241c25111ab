package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
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
	fenced []string          // identities that were fenced
	seen   time.Duration     // silence of those that are not dead
}

func newMachine(t *testing.T, bucket *memstore.Bucket, name string) *machine {
	t.Helper()
	m := &machine{
		world: &world{t: t, data: t.TempDir(), bucket: bucket, log: testlog.Buffer{}}, name: name, term: name + "-1", dead: map[string]bool{}, states: map[string]string{},
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
	defer m.mu.Unlock()
	return fence.Verdict{Dead: m.dead[o.Node], Silent: m.seen, DeadIn: time.Minute}, nil
}

func (m *machine) State(_ context.Context, _, identity string) (string, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.states[identity], nil
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
		c.local = Local{s.Sequence(), s.Manifest().Epoch}
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
		State: state, Sequence: sequence, Epoch: c.right.Epoch, Time: time.Now().UTC(), Namespace: "default", ID: c.id, Identity: c.identity, Lineage: lineageOf(c.dir()),
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
	m := snapshot.Manifest{Sequence: sequence, Epoch: c.right.Epoch, Namespace: "default", ID: c.id, Identity: c.identity, Lineage: lineageOf(c.dir()), Created: time.Now().UTC()}
	c.writeSnapshot(filepath.Join(c.dir(), strconv.FormatUint(sequence, 10)), m, pages)
	c.localHead(snapshot.Asleep, sequence)
	if c.local.Sequence != 0 && c.local.Sequence != sequence {
		c.must(os.RemoveAll(filepath.Join(c.dir(), strconv.FormatUint(c.local.Sequence, 10))))
	}
	c.local = Local{sequence, c.right.Epoch}
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
