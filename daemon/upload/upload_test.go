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

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// TestUploads: each sleep's snapshot comes to the store by itself, and the second sends what is new.
func TestUploads(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(func(o *Options) { o.ScanEvery = time.Hour }) // only what it is told
	pages := memory(512, 1)
	w.sleep("web", 1, pages)
	d.Slept(key("web"), Wishes{})
	first := w.uploaded(d, "web", 1)
	if first.Name != "default/"+filepath.Base(w.dir("web"))+"."+lineageOf("web") || first.Local != 1 || first.Err != nil {
		t.Errorf("copies %+v", first)
	}
	copy(pages[100*4096:], memory(1, 2))
	w.sleep("web", 2, pages)
	d.Slept(key("web"), Wishes{})
	w.uploaded(d, "web", 2)
	all, err := d.List(t.Context(), "default/web")
	if err != nil || len(all) != 1 || all[0].Err != nil || len(all[0].Head.Generations) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	if g := all[0].Head.Generations; g[0].Sequence != 2 || g[0].Sent*20 > g[1].Sent {
		t.Errorf("the second sent %d bytes, the first %d", g[0].Sent, g[1].Sent)
	}
	if o := all[0].Head.Owner; o == nil || o.Node != "node-1" || all[0].Key != key("web") {
		t.Errorf("owner %+v, workload %v", o, all[0].Key)
	}
	if s := d.Stats(); s.Lag != 0 || s.Waiting+s.Running+s.Stuck != 0 {
		t.Errorf("%+v", s)
	}
	if c := d.Condition(); c.Fences != FencesYes && c.Fences != FencesUnknown {
		t.Errorf("condition %+v", c)
	}
	w.eventually("the store is found to fence", func() bool { return d.Condition().Text() == "fences" })
}

// TestKilledWhileItUploads: the next daemon goes on under the same claim.
func TestKilledWhileItUploads(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(64, 1))
	d := w.daemon()
	w.uploaded(d, "web", 1)
	d.stop()
	d = w.daemon(func(o *Options) { o.ScanEvery = 5 * time.Millisecond })
	began := make(chan struct{}, 1) // it may begin before it is waited for
	d.store.Script(memstore.Fault{Op: memstore.Put, Name: "data/", Kind: memstore.Stall, Times: -1, Do: func() {
		select {
		case began <- struct{}{}:
		default:
		}
	}})
	w.sleep("web", 2, memory(64, 2))
	w.comes(began)
	d.stop()
	if got := w.sequences("default/" + filepath.Base(w.dir("web")) + "." + lineageOf("web")); !slices.Equal(got, []uint64{1}) {
		t.Fatalf("generations %v", got)
	}
	d = w.daemon()
	c := w.uploaded(d, "web", 2)
	if h, err := w.other(c.Name).Head(t.Context()); err != nil || h.Epoch != 1 {
		t.Errorf("epoch %d, %v: it was claimed anew", h.Epoch, err)
	}
}

// TestClaimThatWasNotWrittenDown: a daemon that died between its claim and its note of it shuts nobody out.
func TestClaimThatWasNotWrittenDown(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"note of a claim that is begun": func(path string) error {
			r, err := readRecord(path)
			if err != nil {
				return err
			}
			u := New(Options{DataDir: filepath.Dir(filepath.Dir(path)), Keys: durable.Keyring{Current: durable.InsecurePlaintext()}})
			return u.save(record{Name: r.Name, Place: r.Place, Dir: r.Dir, Namespace: r.Namespace, ID: r.ID, Lineage: r.Lineage, Claiming: true})
		},
		"no note":        os.Remove,
		"a torn note":    func(path string) error { return os.Truncate(path, 10) },
		"an older claim": func(path string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.sleep("web", 1, memory(8, 1))
			d := w.daemon()
			c := w.uploaded(d, "web", 1)
			d.stop()
			w.must(spoil(d.recordPath(c.Name)))
			w.sleep("web", 2, memory(8, 2))
			d = w.daemon()
			w.uploaded(d, "web", 2)
			if got := w.sequences(c.Name); !slices.Equal(got, []uint64{2, 1}) {
				t.Errorf("generations %v", got)
			}
		})
	}
}

// TestAnotherNodeHasIt: what another node has claimed isn't taken from it; that is told, and tried again.
func TestAnotherNodeHasIt(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(8, 1))
	name := "default/" + filepath.Base(w.dir("web")) + "." + lineageOf("web")
	other := w.other(name)
	if _, err := other.Acquire(t.Context(), durable.Claim{}); err != nil {
		t.Fatal(err)
	}
	d := w.daemon()
	var c Copies
	w.eventually("it is told", func() bool { c, _ = d.Copies(key("web")); return c.Err != nil })
	if !errors.Is(c.Err, durable.ErrOwned) || !strings.Contains(c.Err.Error(), "node-2") || c.Final {
		t.Errorf("%+v", c)
	}
	if d.Stats().Lag <= 0 {
		t.Error("nothing lags")
	}
	w.must(other.Release(t.Context()))
	w.uploaded(d, "web", 1)
}

// TestFenced: once another node has taken over, nothing is sent, and it isn't tried again.
func TestFenced(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(8, 1))
	d := w.daemon()
	c := w.uploaded(d, "web", 1)
	if _, err := w.other(c.Name).Acquire(t.Context(), durable.Claim{TakeOver: true}); err != nil {
		t.Fatal(err)
	}
	w.sleep("web", 2, memory(8, 2))
	w.eventually("it is told", func() bool { c, _ = d.Copies(key("web")); return c.Final })
	if !errors.Is(c.Err, durable.ErrFenced) || d.Stats().Stuck != 1 {
		t.Errorf("%+v, %+v", c, d.Stats())
	}
	var calls atomic.Int64
	d.store.Before(func(op memstore.Op, name string) memstore.Fault {
		if strings.HasPrefix(name, "heads/") {
			calls.Add(1)
		}
		return memstore.Fault{}
	})
	w.sleep("web", 3, memory(8, 3))
	w.eventually("it has seen the next", func() bool { c, _ = d.Copies(key("web")); return c.Local == 3 })
	d.stop()
	if calls.Load() != 0 {
		t.Errorf("the head was asked for %d times", calls.Load())
	}
	if got := w.sequences(c.Name); !slices.Equal(got, []uint64{1}) {
		t.Errorf("generations %v", got)
	}
	d = w.daemon() // knows it from its claim
	w.eventually("it is told again", func() bool { c, _ = d.Copies(key("web")); return c.Final })
}

// TestStoreAway: snapshots wait for as long as it takes, their age is told, and then they are uploaded.
func TestStoreAway(t *testing.T) {
	for name, err := range map[string]error{"unavailable": store.ErrUnavailable, "refused": store.ErrRefused} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.sleep("web", 1, memory(8, 1))
			s := w.bucket.Store()
			s.Script(memstore.Fault{Kind: memstore.Fail, Times: -1, Err: err})
			d := w.daemon(func(o *Options) { o.Open = func() (store.Store, error) { return s, nil } })
			w.eventually("the store is known to be away", func() bool { return errors.Is(d.Condition().Err, err) })
			w.eventually("the failure is told", func() bool { c, _ := d.Copies(key("web")); return errors.Is(c.Err, err) && !c.Final })
			if s := d.Stats(); s.Lag <= 0 || s.Waiting+s.Running != 1 {
				t.Errorf("%+v", s)
			}
			w.eventually("the log says so", func() bool { return strings.Contains(w.log.String(), "the store can't be used") })
			s.Heal()
			w.uploaded(d, "web", 1)
			w.eventually("it is found to fence", func() bool { return d.Condition().Text() == "fences" })
			for _, want := range []string{"the store can't be used", "the store can be used again", "was not uploaded"} {
				if n := strings.Count(w.log.String(), "level=ERROR msg=\""+want) + strings.Count(w.log.String(), "level=INFO msg=\""+want) +
					strings.Count(w.log.String(), "level=WARN msg=\"a snapshot "+want); n != 1 {
					t.Errorf("%q is in the log %d times", want, n)
				}
			}
		})
	}
}

// TestStoreThatIsNotThereYet: it is opened when it can be.
func TestStoreThatIsNotThereYet(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(8, 1))
	var there atomic.Bool
	d := w.daemon(func(o *Options) {
		open := o.Open
		o.Open = func() (store.Store, error) {
			if !there.Load() {
				return nil, errors.New("no such directory")
			}
			return open()
		}
	})
	w.eventually("it is told", func() bool { return strings.Contains(d.Condition().Text(), "no such directory") })
	if _, err := d.List(t.Context(), ""); err == nil || !strings.Contains(err.Error(), "no such directory") {
		t.Errorf("list: %v", err)
	}
	if s := d.Stats(); s.Lag <= 0 {
		t.Errorf("%+v", s)
	}
	there.Store(true)
	w.uploaded(d, "web", 1)
}

// TestReplaced: an upload is given up for a newer snapshot once, and the next one comes to its end.
func TestReplaced(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(8, 1))
	s := w.bucket.Store()
	began := make(chan struct{}, 1)
	s.Script(memstore.Fault{Op: memstore.Put, Name: "data/", Kind: memstore.Stall, Times: -1, Do: func() {
		select {
		case began <- struct{}{}:
		default:
		}
	}})
	d := w.daemon(func(o *Options) { o.Open = func() (store.Store, error) { return s, nil } })
	w.comes(began)
	w.sleep("web", 2, memory(8, 2))
	w.eventually("the newer one is sent", func() bool {
		d.mu.Lock()
		defer d.mu.Unlock()
		for _, l := range d.lineages {
			return l.sending == 2
		}
		return false
	})
	w.sleep("web", 3, memory(8, 3))
	w.eventually("it is seen", func() bool { c, _ := d.Copies(key("web")); return c.Local == 3 })
	s.Heal()
	// What stalls goes on stalling: the daemon's end is what ends it.
	d.stop()
	if got := strings.Count(w.log.String(), "was given up"); got != 1 {
		t.Errorf("%d uploads were given up, want the first alone", got)
	}
	d = w.daemon()
	c := w.uploaded(d, "web", 3)
	if got := w.sequences(c.Name); !slices.Equal(got, []uint64{3}) {
		t.Errorf("generations %v", got)
	}
}

// TestDamagedOnTheNode: what the node has wrongly isn't uploaded, and isn't tried again; the next snapshot is.
func TestDamagedOnTheNode(t *testing.T) {
	for name, spoil := range map[string]func(path string) error{
		"truncated": func(path string) error { return os.Truncate(path, 4096) },
		"gone":      os.Remove,
		"another bit": func(path string) error {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			b[5000] ^= 1
			return os.WriteFile(path, b, 0o600)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.sleep("web", 1, memory(8, 1))
			w.must(spoil(filepath.Join(w.dir("web"), "1", "image", "pages.img")))
			d := w.daemon()
			var c Copies
			w.eventually("it is told", func() bool { c, _ = d.Copies(key("web")); return c.Final })
			if !errors.Is(c.Err, snapshot.ErrCorrupt) || !strings.Contains(c.Err.Error(), "pages.img") || c.Durable != 0 {
				t.Errorf("%+v", c)
			}
			w.sleep("web", 2, memory(8, 2))
			w.uploaded(d, "web", 2)
		})
	}
}

// TestNothingToUpload: what has ended, or is in quarantine, is left alone.
func TestNothingToUpload(t *testing.T) {
	w := newWorld(t)
	w.sleep("ended", 1, memory(8, 1))
	w.head("ended", snapshot.Head{State: snapshot.Ended, Sequence: 1, Time: time.Now(), Namespace: "default", ID: "ended", Lineage: lineageOf("ended")})
	w.sleep("aside", 1, memory(8, 1))
	w.must(os.RemoveAll(filepath.Join(w.dir("aside"), "1")))
	w.sleep("web", 1, memory(8, 1))
	w.head("web", snapshot.Head{State: snapshot.Awake, Sequence: 1, Time: time.Now(), Namespace: "default", ID: "web", Lineage: lineageOf("web")})
	d := w.daemon()
	w.uploaded(d, "web", 1) // awake again: its snapshot is still the newest there is
	w.eventually("nothing waits", func() bool { s := d.Stats(); return s.Lag == 0 && s.Running == 0 })
	if names := w.bucket.Names(); slices.ContainsFunc(names, func(n string) bool { return strings.Contains(n, filepath.Base(w.dir("ended"))) }) {
		t.Errorf("%v", names)
	}
}

// TestGoneAndMadeAnew: of a workload that was removed the store's snapshots are kept and told; another container of its id
// is another lineage, though its sequences begin again.
func TestGoneAndMadeAnew(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(8, 1))
	w.sleep("web", 2, memory(8, 2))
	d := w.daemon(func(o *Options) { o.ScanEvery = time.Hour })
	before := w.uploaded(d, "web", 2)
	w.must(os.RemoveAll(w.dir("web")))
	d.Left(key("web"))
	w.eventually("it is told as gone", func() bool {
		all, err := d.List(t.Context(), before.Name)
		return err == nil && len(all) == 1 && !all[0].Gone.IsZero()
	})
	w.sleepAs("web", lineageOf("another"), 1, memory(8, 3))
	d.Slept(key("web"), Wishes{})
	after := w.uploaded(d, "web", 1)
	if after.Name == before.Name {
		t.Fatalf("both are %s", after.Name)
	}
	all, err := d.List(t.Context(), "")
	if err != nil || len(all) != 2 {
		t.Fatalf("%+v, %v", all, err)
	}
	for _, l := range all {
		if (l.Name == before.Name) == l.Gone.IsZero() || l.Err != nil || len(l.Head.Generations) != 1 {
			t.Errorf("%+v", l)
		}
	}
	if name, _, err := d.Verify(t.Context(), "web", 0, nil); err != nil || name != after.Name {
		t.Errorf("web is %s: %v", name, err)
	}
	d.stop()
	d = w.daemon() // knows it from its records
	w.eventually("it is still told as gone", func() bool {
		all, err := d.List(t.Context(), before.Name)
		return err == nil && len(all) == 1 && !all[0].Gone.IsZero()
	})
}

// TestAnotherStore: with another store all is uploaded there, under claims of its own.
func TestAnotherStore(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(8, 1))
	d := w.daemon()
	w.uploaded(d, "web", 1)
	d.stop()
	first := w.bucket
	w.bucket = memstore.NewBucket()
	d = w.daemon(func(o *Options) { o.URL = "s3://other/p" })
	w.uploaded(d, "web", 1)
	d.stop()
	other := w.bucket
	w.bucket = first // back again: its claim there is told by its name alone
	w.sleep("web", 2, memory(8, 2))
	d = w.daemon()
	if c := w.uploaded(d, "web", 2); !slices.Equal(w.sequences(c.Name), []uint64{2, 1}) {
		t.Errorf("generations %v", w.sequences(c.Name))
	}
	d.stop()
	w.bucket = other
	d = w.daemon(func(o *Options) { o.URL = "s3://other/p" })
	w.uploaded(d, "web", 2)
	d.stop()
	w.bucket = memstore.NewBucket() // the same by name: it has lost what was there
	d = w.daemon(func(o *Options) { o.URL = "s3://other/p" })
	w.sleep("web", 3, memory(8, 3))
	w.eventually("it is told", func() bool { c, _ := d.Copies(key("web")); return errors.Is(c.Err, durable.ErrRolledBack) })
}

// TestKeepsTheNewest: of each workload as many generations as it says.
func TestKeepsTheNewest(t *testing.T) {
	w := newWorld(t)
	d := w.daemon(func(o *Options) { o.Keep = 2 })
	var two, one Copies
	for n := range uint64(5) {
		w.sleep("two", n+1, memory(8, byte(n)))
		two = w.uploaded(d, "two", n+1)
		w.sleep("one", n+1, memory(8, byte(n)))
		d.Slept(key("one"), Wishes{Keep: 1})
		one = w.uploaded(d, "one", n+1)
	}
	w.eventually("older ones are dropped", func() bool {
		return slices.Equal(w.sequences(two.Name), []uint64{5, 4}) && slices.Equal(w.sequences(one.Name), []uint64{5})
	})
	var all []Collected
	err := d.Collect(t.Context(), "one", true, func(c Collected) error { all = append(all, c); return nil })
	if err != nil || len(all) != 1 || all[0].Err != nil || len(all[0].Deleted) != 0 {
		t.Errorf("within the grace nothing goes: %+v, %v", all, err)
	}
}

// TestVerify reads all back, and names what is wrong.
func TestVerify(t *testing.T) {
	w := newWorld(t)
	w.sleep("web", 1, memory(200, 1))
	d := w.daemon()
	c := w.uploaded(d, "web", 1)
	var told atomic.Int64
	name, g, err := d.Verify(t.Context(), "default/web", 0, func(p durable.Progress) { told.Store(p.Done) })
	if err != nil || name != c.Name || g.Sequence != 1 || told.Load() < 200*4096 {
		t.Errorf("%s %+v, %d told: %v", name, g, told.Load(), err)
	}
	for _, object := range w.bucket.Names() {
		if strings.Contains(object, "/p/") {
			w.bucket.Alter(object, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
		}
	}
	if _, _, err := d.Verify(t.Context(), "web", 1, nil); !errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("a wrong bit: %v", err)
	}
	if _, _, err := d.Verify(t.Context(), "web", 9, nil); !errors.Is(err, durable.ErrNone) {
		t.Errorf("no such sequence: %v", err)
	}
	if _, _, err := d.Verify(t.Context(), "nobody", 0, nil); !errors.Is(err, ErrUnknown) {
		t.Errorf("no such name: %v", err)
	}
}

// TestDishonestStore is used, and told.
func TestDishonestStore(t *testing.T) {
	w := newWorld(t)
	w.bucket.SetHonesty(memstore.Ignores)
	w.sleep("web", 1, memory(8, 1))
	d := w.daemon()
	w.uploaded(d, "web", 1)
	w.eventually("it is found out", func() bool { return d.Condition().Fences == FencesNo })
	if text := d.Condition().Text(); !strings.HasPrefix(text, "does not fence: ") || len(text) < 30 {
		t.Error(text)
	}
}

// TestNotTooManyAtOnce: as many uploads as it may, one of each lineage.
func TestNotTooManyAtOnce(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		w.sleep(id, 1, memory(8, id[0]))
	}
	s := w.bucket.Store()
	var most atomic.Int64
	d := w.daemon(func(o *Options) { o.Open = func() (store.Store, error) { return s, nil } })
	s.Before(func(memstore.Op, string) memstore.Fault {
		for n := int64(d.Stats().Running); ; {
			was := most.Load()
			if n <= was || most.CompareAndSwap(was, n) {
				return memstore.Fault{}
			}
		}
	})
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		w.uploaded(d, id, 1)
	}
	if most.Load() > 2 {
		t.Errorf("%d at once", most.Load())
	}
}

// TestEndsWithItsContext: nothing outlives Run for long, whatever the store does, not even what tidies up.
func TestEndsWithItsContext(t *testing.T) {
	for name, op := range map[string]memstore.Op{"all hangs": "", "deletions hang": memstore.Delete} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.sleep("web", 1, memory(8, 1))
			s := w.bucket.Store()
			began := make(chan struct{}, 1)
			s.Script(memstore.Fault{Op: op, Kind: memstore.Stall, Times: -1, Do: func() {
				select {
				case began <- struct{}{}:
				default:
				}
			}})
			u := New(Options{
				DataDir: w.data, Open: func() (store.Store, error) { return s, nil }, URL: "s3://b", Node: "node-1",
				Keys: durable.Keyring{Current: durable.InsecurePlaintext()},
			})
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan struct{})
			go func() { u.Run(ctx); close(ended) }()
			w.comes(began)
			cancel()
			select {
			case <-ended:
			case <-time.After(20 * time.Second):
				t.Fatal("it goes on")
			}
		})
	}
}
