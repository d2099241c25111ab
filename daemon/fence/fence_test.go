package fence

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibernate-runtime/hibernate/api/rights"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// Of all tests: a round T.
const after = 60 * time.Second

// machine is one with a fence. In a synctest bubble its clocks are the bubble's, and suspended is what the one that stands still
// meanwhile lacks.
type machine struct {
	*Fence
	t         *testing.T
	store     *memstore.Store
	dir, run  string
	self      Self
	claimed   atomic.Bool
	terms     atomic.Int32 // that have begun
	begin     time.Time
	suspended atomic.Int64
	takeOver  time.Duration
	end       func()
}

func newMachine(t *testing.T, bucket *memstore.Bucket, node string) *machine {
	t.Helper()
	m := &machine{t: t, store: bucket.Store(), dir: filepath.Join(t.TempDir(), "notes"), run: t.TempDir(), begin: time.Now().Add(-time.Hour), takeOver: after}
	m.load(node)
	m.claimed.Store(true)
	return m
}

func (m *machine) load(node string) {
	m.t.Helper()
	var err error
	if m.self, err = LoadSelf(m.dir, node); err != nil {
		m.t.Fatal(err)
	}
}

func (m *machine) boot() time.Duration { return time.Since(m.begin) }

// process starts one; end ends it.
func (m *machine) process() {
	m.t.Helper()
	m.load(m.self.Node)
	tier, err := durable.New(durable.Config{
		Store: m.store, Keys: durable.Keyring{Current: durable.InsecurePlaintext()}, Node: m.self.Node, Incarnation: m.self.Incarnation,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	m.Fence = New(Options{
		Self: m.self, Dir: m.dir, RunDir: m.run, After: m.takeOver, Tier: func() (*durable.Tier, error) { return tier, nil }, Claimed: m.claimed.Load,
		Changed: func() { m.terms.Add(1) }, Boot: m.boot, Awake: func() time.Duration { return m.boot() - time.Duration(m.suspended.Load()) },
	})
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	g.Go(func() { m.Run(ctx) })
	m.end = sync.OnceFunc(func() {
		cancel()
		g.Wait()
	})
}

func (m *machine) owner() durable.Owner {
	return durable.Owner{Node: m.self.Node, Incarnation: m.self.Incarnation, Claim: "c"}
}

func (m *machine) verdict(o durable.Owner) Verdict {
	m.t.Helper()
	v, err := m.Judge(m.t.Context(), o)
	if err != nil || v.Err != nil {
		m.t.Fatal(err, v.Err)
	}
	return v
}

// onDisk is the lease that shims see.
func (m *machine) onDisk() rights.Lease {
	m.t.Helper()
	l, err := rights.ReadLease(m.run)
	if err != nil {
		m.t.Fatal(err)
	}
	return l
}

// stopStore has nothing come to or from the store until the next Heal.
func (m *machine) stopStore() {
	m.store.Script(memstore.Fault{Kind: memstore.Fail, Times: -1})
}

// A beat's lease counts from when it was begun, is what shims read, and is renewed long before it ends.
func TestLeaseCountsFromTheBeginning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, memstore.NewBucket(), "a")
		m.store.Script(memstore.Fault{Op: memstore.Put, Do: func() { time.Sleep(7 * time.Second) }})
		m.process()
		defer m.end()
		time.Sleep(7*time.Second + time.Millisecond)
		begun := m.boot() - 7*time.Second - time.Millisecond
		want := rights.Lease{Node: "a", Sleep: begun + 30*time.Second, End: begun + 50*time.Second}
		if got := m.onDisk(); got.Sleep != want.Sleep || got.End != want.End || got.Node != want.Node {
			t.Errorf("%+v, want %+v", got, want)
		}
		if _, ok := m.Term(); !ok || m.terms.Load() != 1 {
			t.Error("there is no term")
		}
		for range 100 {
			time.Sleep(after / 12)
			if left := m.Left(); left < after/6 {
				t.Fatalf("only %v are left", left)
			}
		}
		if m.terms.Load() != 1 {
			t.Errorf("%d terms", m.terms.Load())
		}
	})
}

// While the store is away the lease runs out; what was claimed before counts again when it is back in time, and must be confirmed when not.
func TestOutage(t *testing.T) {
	for outage, terms := range map[time.Duration]int32{25 * time.Second: 1, 35 * time.Second: 1, 90 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, memstore.NewBucket(), "a")
			m.process()
			defer m.end()
			time.Sleep(time.Millisecond)
			first, _ := m.Term()
			m.stopStore()
			time.Sleep(outage)
			if _, ok := m.Term(); ok != (outage < 30*time.Second) {
				t.Errorf("after %v: a term: %v", outage, ok)
			}
			if _, err := m.Need(t.Context()); (err == nil) != (outage < 30*time.Second) || err != nil && !errors.Is(err, ErrLapsed) {
				t.Errorf("after %v: %v", outage, err)
			}
			m.store.Heal()
			term, err := m.Need(t.Context())
			if err != nil || (term == first) != (terms == 1) || m.terms.Load() != terms {
				t.Errorf("after %v: %v, %d terms", outage, err, m.terms.Load())
			}
		})
	}
}

// However long the silence, a node is called dead only when its lease has been over for a third of T, by either one's clock.
func TestDeath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := memstore.NewBucket()
		a, b := newMachine(t, bucket, "a"), newMachine(t, bucket, "b")
		a.process()
		b.process()
		defer b.end()
		for range 40 {
			time.Sleep(5 * time.Second)
			if v := b.verdict(a.owner()); v.Dead || v.Silent > after/6+time.Second {
				t.Fatalf("a node that lives: %+v", v)
			}
		}
		a.end()
		begun := time.Now()
		for time.Since(begun) < 3*after {
			time.Sleep(time.Second)
			v := b.verdict(a.owner())
			if over := a.boot() - a.onDisk().End; v.Dead && over < after/3 {
				t.Fatalf("dead, and its lease ended %v ago", over)
			}
			if v.Dead {
				break
			}
		}
		if v := b.verdict(a.owner()); !v.Dead || time.Since(begun) > after+after/6+time.Second {
			t.Errorf("%+v after %v", v, time.Since(begun))
		}
		if living, silent := b.Counts(); living != 1 || silent != 1 {
			t.Errorf("%d living, %d silent", living, silent)
		}
		// It comes back.
		a.process()
		defer a.end()
		time.Sleep(time.Second)
		if v := b.verdict(a.owner()); v.Dead || a.terms.Load() != 2 {
			t.Errorf("%+v, %d terms", v, a.terms.Load())
		}
	})
}

// A machine that was suspended has not watched for that long; and its own lease is over.
func TestSuspended(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := memstore.NewBucket()
		a, b := newMachine(t, bucket, "a"), newMachine(t, bucket, "b")
		a.process()
		b.process()
		defer b.end()
		time.Sleep(5 * time.Second)
		a.end()
		b.end()
		time.Sleep(time.Hour)
		b.suspended.Add(int64(time.Hour))
		if _, ok := b.Term(); ok {
			t.Error("it has a lease")
		}
		if v := b.verdict(a.owner()); v.Dead || v.Silent > 6*time.Second {
			t.Errorf("%+v", v)
		}
	})
}

// A node that died long before anybody asks needn't be waited for, whether the one that asks has claimed anything or not.
func TestDiedLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := memstore.NewBucket()
		a, b := newMachine(t, bucket, "a"), newMachine(t, bucket, "b")
		b.claimed.Store(false)
		a.process()
		b.process()
		defer b.end()
		time.Sleep(after)
		a.end()
		time.Sleep(4 * after)
		if v := b.verdict(a.owner()); !v.Dead {
			t.Errorf("%+v", v)
		}
		if bucket.Body("nodes/b") != nil {
			t.Error("it beats, and has claimed nothing")
		}
		if _, err := b.Need(t.Context()); err != nil || bucket.Body("nodes/b") == nil {
			t.Errorf("it doesn't beat, and is going to claim something: %v", err)
		}
	})
}

// A daemon that is started again goes on with the lease and the term, unless the lease has ended.
func TestStartedAgain(t *testing.T) {
	for pause, terms := range map[time.Duration]int32{time.Second: 1, 45 * time.Second: 1, 55 * time.Second: 2} {
		synctest.Test(t, func(t *testing.T) {
			m := newMachine(t, memstore.NewBucket(), "a")
			m.process()
			time.Sleep(time.Millisecond)
			first, _ := m.Term()
			m.end()
			time.Sleep(pause)
			m.process()
			defer m.end()
			time.Sleep(time.Second)
			if term, ok := m.Term(); !ok || (term == first) != (terms == 1) || m.terms.Load() != terms {
				t.Errorf("after %v: %v, %d terms", pause, ok, m.terms.Load())
			}
		})
	}
}

// A takeover-after that was made shorter shortens the lease before anybody hears of it.
func TestShorterTakeOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(t, memstore.NewBucket(), "a")
		m.takeOver = 10 * after
		m.process()
		time.Sleep(time.Millisecond)
		m.end()
		m.takeOver = after
		m.stopStore()
		m.process()
		defer m.end()
		if l := m.onDisk(); l.End > m.boot()+50*time.Second || l.Sleep > m.boot()+30*time.Second {
			t.Errorf("%v, %v from now", l.Sleep-m.boot(), l.End-m.boot())
		}
	})
}

// A node of another takeover-after is waited for as it says.
func TestLongerTakeOverOfAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := memstore.NewBucket()
		a, b := newMachine(t, bucket, "a"), newMachine(t, bucket, "b")
		a.takeOver = 3 * after
		a.process()
		b.process()
		defer b.end()
		time.Sleep(time.Second)
		a.end()
		time.Sleep(2 * after)
		if v := b.verdict(a.owner()); v.Dead {
			t.Errorf("%+v", v)
		}
		time.Sleep(3 * after)
		if v := b.verdict(a.owner()); !v.Dead {
			t.Errorf("%+v", v)
		}
	})
}

// A second machine of the same name has no lease while the first one lives, and says who it is; it has the name when that one is gone.
func TestRival(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := memstore.NewBucket()
		a, b := newMachine(t, bucket, "same"), newMachine(t, bucket, "same")
		a.process()
		time.Sleep(time.Second)
		b.process()
		defer b.end()
		time.Sleep(10 * after)
		_, err := b.Need(t.Context())
		if !errors.Is(err, durable.ErrNodeTaken) || !strings.Contains(err.Error(), a.self.Incarnation) || !strings.Contains(err.Error(), b.self.Incarnation) {
			t.Errorf("%v", err)
		}
		if _, ok := a.Term(); !ok || a.terms.Load() != 1 {
			t.Error("the first has lost its lease")
		}
		if v := b.verdict(a.owner()); v.Dead {
			t.Errorf("%+v", v)
		}
		a.end()
		time.Sleep(2 * after)
		if _, ok := b.Term(); !ok {
			t.Errorf("the second has no lease when the first is gone: %v", b.Err())
		}
		if v := b.verdict(a.owner()); !v.Dead {
			t.Errorf("%+v", v)
		}
		a.process()
		defer a.end()
		time.Sleep(after)
		if _, ok := a.Term(); ok || !errors.Is(a.Err(), durable.ErrNodeTaken) {
			t.Errorf("the first has it back: %v", a.Err())
		}
	})
}

// Whose object was deleted, and made again by another machine of the name, isn't dead for that.
func TestDeletedObject(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bucket := memstore.NewBucket()
		a, b, c := newMachine(t, bucket, "same"), newMachine(t, bucket, "same"), newMachine(t, bucket, "c")
		c.process()
		defer c.end()
		a.process()
		time.Sleep(time.Second)
		bucket.Alter("nodes/same", func([]byte) []byte { return nil })
		b.process()
		defer b.end()
		time.Sleep(time.Second)
		for range 20 {
			v := c.verdict(a.owner())
			if over := a.boot() - a.onDisk().End; v.Dead && over < after/3 {
				t.Fatalf("dead, and its lease ended %v ago", over)
			}
			time.Sleep(5 * time.Second)
		}
		a.end()
	})
}

// Another name is another node, whose data directory it was.
func TestAnotherName(t *testing.T) {
	m := newMachine(t, memstore.NewBucket(), "a")
	first := m.self
	m.load("a")
	if m.self != first || first.Incarnation == "" {
		t.Errorf("%+v, then %+v", first, m.self)
	}
	if m.load("b"); m.self.Incarnation == first.Incarnation || m.self.Node != "b" || m.self.Term != "" {
		t.Errorf("%+v", m.self)
	}
}
