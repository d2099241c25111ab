package upload

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/daemon/pages"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

func workloadOf(id string) api.Workload {
	return api.Workload{Namespace: "default", ID: id, Lineage: lineageOf(id)}
}

// TestReads: what a node has uploaded it reads, by its workload, and knows of it without asking.
func TestReads(t *testing.T) {
	w := newWorld(t)
	d := w.daemon()
	for sequence := uint64(1); sequence <= 2; sequence++ {
		w.sleep("web", sequence, memory(8, byte(sequence)))
		w.uploaded(d, "web", sequence)
	}
	if k, err := d.Known(workloadOf("web")); err != nil || k.Sequence != 2 || k.Epoch != 1 {
		t.Errorf("known: %+v, %v", k, err)
	}
	for asked, got := range map[uint64]uint64{0: 2, 1: 1, 2: 2} {
		s, err := d.Open(t.Context(), workloadOf("web"), asked)
		w.must(err)
		f, err := s.File("pages.img")
		w.must(err)
		data := make([]byte, f.Size())
		if _, err := f.ReadAt(data, 0); err != nil || !bytes.Equal(data, memory(8, byte(got))) || s.Generation().Sequence != got || len(s.Generations()) != 2 {
			t.Errorf("asked for %d: %+v, %v", asked, s.Generation(), err)
		}
		s.Close()
	}
	var other *pages.OpenError
	if _, err := d.Open(t.Context(), workloadOf("web"), 7); !errors.Is(err, durable.ErrNone) || !errors.As(err, &other) || len(other.Generations) != 2 {
		t.Errorf("a generation that isn't there: %v", err)
	}
	another := workloadOf("web")
	another.Lineage = lineageOf("web's successor")
	if _, err := d.Open(t.Context(), another, 0); !errors.Is(err, durable.ErrNone) {
		t.Errorf("another lineage: %v", err)
	}
	w.must(d.Keep(t.Context(), workloadOf("web"), 1))
	if h, err := w.other(d.nameFor(workloadOf("web"))).Head(t.Context()); err != nil || !h.Generations[1].Pinned || h.Generations[0].Pinned {
		t.Errorf("pinned: %+v, %v", h.Generations, err)
	}
}

// TestReadsWhatIsOurs: what another node has claimed is not read, nor what is older than was seen; of another store nothing is known.
func TestReadsWhatIsOurs(t *testing.T) {
	w := newWorld(t)
	d := w.daemon()
	w.sleep("web", 1, memory(8, 1))
	c := w.uploaded(d, "web", 1)
	if _, err := w.other(c.Name).Acquire(t.Context(), durable.Claim{TakeOver: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := d.Open(t.Context(), workloadOf("web"), 0); !errors.Is(err, durable.ErrOwned) {
		t.Errorf("claimed by another node: %v", err)
	}
	d.stop()
	w.bucket = memstore.NewBucket()
	d = w.daemon()
	w.eventually("the store is open", func() bool { return d.isOpen() })
	if _, err := d.Open(t.Context(), workloadOf("web"), 0); !errors.Is(err, durable.ErrRolledBack) {
		t.Errorf("a store that has lost it: %v", err)
	}
	d.stop()
	d = w.daemon(func(o *Options) { o.URL = "s3://other/p" })
	w.eventually("the store is open", func() bool { return d.isOpen() })
	if k, err := d.Known(workloadOf("nobody")); err != nil || k.Sequence != 0 {
		t.Errorf("of nobody: %+v, %v", k, err)
	}
}

// TestACopyThatIsGoneIsNotTold: a head may name what isn't there any more.
func TestACopyThatIsGoneIsNotTold(t *testing.T) {
	w := newWorld(t)
	d := w.daemon()
	w.sleep("web", 1, memory(8, 1))
	if c := w.uploaded(d, "web", 1); c.Local != 1 {
		t.Errorf("%+v", c)
	}
	w.must(os.RemoveAll(filepath.Join(w.dir("web"), "1")))
	if c, _ := d.Copies(key("web")); c.Local != 0 || c.Durable != 1 {
		t.Errorf("%+v", c)
	}
}
