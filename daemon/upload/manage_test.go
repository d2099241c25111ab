package upload

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// slept is a daemon whose workload web has slept so many times.
func slept(t *testing.T, times int, set ...func(*Options)) (*world, *daemon, string) {
	t.Helper()
	w := newWorld(t)
	d := w.daemon(set...)
	var name string
	for n := range times {
		w.sleep("web", uint64(n+1), memory(100, byte(n+1)))
		name = w.uploaded(d, "web", uint64(n+1)).Name
	}
	return w, d, name
}

// leave has nothing of web on the node.
func (w *world) leave(d *daemon, name string) {
	w.t.Helper()
	w.must(os.RemoveAll(w.dir("web")))
	w.eventually("the workload has left", func() bool { return !d.listed(name).Gone.IsZero() })
}

func wantError(t *testing.T, err, is error, words ...string) {
	t.Helper()
	if !errors.Is(err, is) {
		t.Errorf("got %v, want %v", err, is)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%q is missing in %q", w, err)
		}
	}
}

// TestPinned: a snapshot that is pinned is kept for ever; unpinned, it goes.
func TestPinned(t *testing.T) {
	w, d, name := slept(t, 1)
	if _, g, err := d.Pin(t.Context(), "web", 0, true); err != nil || g.Sequence != 1 || !g.Pinned {
		t.Fatalf("%+v, %v", g, err)
	}
	for n := uint64(2); n <= 6; n++ {
		w.sleep("web", n, memory(100, byte(n)))
		w.uploaded(d, "web", n)
	}
	w.must(d.Collect(t.Context(), "", false, func(c Collected) error { return c.Err }))
	if got := w.sequences(name); !slices.Equal(got, []uint64{6, 5, 4, 1}) {
		t.Errorf("generations %d", got)
	}
	_, err := d.Remove(t.Context(), name, 1, true)
	wantError(t, err, ErrKept, "pinned", "unpin "+name+"@1")
	_, _, err = d.Pin(t.Context(), name, 1, false)
	w.must(err)
	w.eventually("it goes", func() bool { return slices.Equal(w.sequences(name), []uint64{6, 5, 4}) })
	_, _, err = d.Pin(t.Context(), name, 1, true)
	wantError(t, err, durable.ErrNone, "no generation 1")
}

// TestCollectsAgain: what becomes garbage while garbage is collected is looked for by another collection.
func TestCollectsAgain(t *testing.T) {
	w, d, name := slept(t, 1)
	w.eventually("nothing is to be collected", func() bool { return w.collects(d, name).After(time.Now()) || w.collects(d, name).IsZero() })
	collections := make(chan int, 100)
	n := 0
	d.store.Before(func(op memstore.Op, of string) memstore.Fault {
		if op == memstore.List && strings.HasPrefix(of, "data/"+name) {
			if n++; n == 1 {
				d.collectSoon(name)
			}
			collections <- n
		}
		return memstore.Fault{}
	})
	d.collectSoon(name)
	w.eventually("it is looked for twice", func() bool { return len(collections) >= 2 })
}

// TestRemoveOne: the newest of a workload that is there goes by force only, and Copies tells what is left.
func TestRemoveOne(t *testing.T) {
	w, d, name := slept(t, 3)
	_, err := d.Remove(t.Context(), "web", 3, false)
	wantError(t, err, ErrKept, "newest", "node-1", "--force")
	_, err = d.Remove(t.Context(), "web", 2, false)
	w.must(err)
	if c, _ := d.Copies(key("web")); c.Durable != 3 {
		t.Errorf("%+v", c)
	}
	_, err = d.Remove(t.Context(), "web", 3, true)
	w.must(err)
	if got := w.sequences(name); !slices.Equal(got, []uint64{1}) {
		t.Errorf("generations %d", got)
	}
	for range 2 { // a daemon that is started anew knows it, too
		if c, _ := d.Copies(key("web")); c.Durable != 1 || !c.Since.IsZero() {
			t.Errorf("%+v", c)
		}
		d.stop()
		d = w.daemon()
		w.eventually("it is open", func() bool { return d.isOpen() })
	}
	w.sleep("web", 4, memory(100, 4))
	w.uploaded(d, "web", 4)
}

// TestDestroyed: all of a workload goes only when that is gone, and then for good: key, head's generations, objects.
func TestDestroyed(t *testing.T) {
	w, d, name := slept(t, 2, func(o *Options) { o.Grace = time.Nanosecond })
	_, err := d.Remove(t.Context(), name, 0, true)
	wantError(t, err, ErrKept, "default/web is on this node")
	w.leave(d, name)
	_, _, err = d.Pin(t.Context(), name, 1, true)
	w.must(err)
	_, err = d.Remove(t.Context(), name, 0, false)
	wantError(t, err, ErrKept, "pinned")
	_, _, err = d.Pin(t.Context(), name, 1, false)
	w.must(err)
	_, err = d.Remove(t.Context(), name, 0, false)
	w.must(err)
	h, err := w.other(name).Head(t.Context())
	if !errors.Is(err, durable.ErrDestroyed) || h.Key != nil || len(h.Generations) != 0 {
		t.Errorf("%+v, %v", h, err)
	}
	if _, err := w.other(name).Open(t.Context(), 0, durable.OpenOptions{}); !errors.Is(err, durable.ErrDestroyed) {
		t.Errorf("it can be opened: %v", err)
	}
}

// TestDestroyedOfAnotherNode: what another node has claimed goes by force only.
func TestDestroyedOfAnotherNode(t *testing.T) {
	w, d, _ := slept(t, 1)
	other := w.other("default/elsewhere")
	_, err := other.Acquire(t.Context(), durable.Claim{})
	w.must(err)
	_, err = d.Remove(t.Context(), "default/elsewhere", 0, false)
	wantError(t, err, ErrKept, "node-2", "--force")
	_, err = d.Remove(t.Context(), "default/elsewhere", 0, true)
	w.must(err)
	if err := other.Release(t.Context()); !errors.Is(err, durable.ErrFenced) && !errors.Is(err, durable.ErrDestroyed) {
		t.Errorf("the node still has it: %v", err)
	}
}

// TestExported: what is exported is what was put to sleep, as a directory and as an archive, and can be imported under another name.
func TestExported(t *testing.T) {
	w, d, name := slept(t, 2)
	dir := t.TempDir()
	found, g, err := d.Export(t.Context(), "web", 1, To{Directory: dir}, nil)
	if err != nil || found != name || g.Sequence != 1 {
		t.Fatalf("%s %+v %v", found, g, err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "pages.img"))
	if err != nil || !bytes.Equal(got, memory(100, 1)) {
		t.Errorf("pages: %d bytes, %v", len(got), err)
	}
	archive := filepath.Join(t.TempDir(), "a.tar")
	w.must(os.WriteFile(archive, nil, 0o600))
	_, _, err = d.Export(t.Context(), "web", 0, To{Archive: archive}, nil)
	w.must(err)
	other := t.TempDir()
	var names []string
	f, err := os.Open(archive)
	w.must(err)
	defer f.Close()
	for in := tar.NewReader(f); ; {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		w.must(err)
		names = append(names, h.Name)
		data, err := io.ReadAll(in)
		w.must(err)
		w.must(os.WriteFile(filepath.Join(other, h.Name), data, 0o600))
	}
	if !slices.Equal(names, []string{"checkpoint.img", "pages.img", "pages_meta.img", "manifest.json"}) {
		t.Errorf("the archive has %q", names)
	}
	_, err = snapshot.OpenExport(other)
	w.must(err)

	g, err = d.Import(t.Context(), "moved/one", other, nil)
	w.must(err)
	back := t.TempDir()
	r, err := w.other("moved/one").Open(t.Context(), g.Sequence, durable.OpenOptions{Lease: true})
	w.must(err)
	defer r.Close()
	w.must(r.Restore(t.Context(), back, nil))
	if got, err := os.ReadFile(filepath.Join(back, "pages.img")); err != nil || !bytes.Equal(got, memory(100, 2)) {
		t.Errorf("pages: %d bytes, %v", len(got), err)
	}
	if _, err := w.other("moved/one").Acquire(t.Context(), durable.Claim{Restore: g.Sequence}); err != nil {
		t.Errorf("another node can't claim it: %v", err)
	}
	_, err = d.Import(t.Context(), "moved/one", other, nil)
	wantError(t, err, ErrExists, "moved/one", "rm")
}

// TestImportsOfNothing: what is no whole export is refused, and leaves no name behind.
func TestImportsOfNothing(t *testing.T) {
	w, d, _ := slept(t, 1)
	dir := t.TempDir()
	_, err := d.Import(t.Context(), "moved/one", dir, nil)
	wantError(t, err, snapshot.ErrTruncated, "not there")
	_, _, err = d.Export(t.Context(), "web", 0, To{Directory: dir}, nil)
	w.must(err)
	manifest, err := os.ReadFile(filepath.Join(dir, "manifest.json"))
	w.must(err)
	w.must(os.Remove(filepath.Join(dir, "manifest.json")))
	_, err = d.Import(t.Context(), "moved/one", dir, nil)
	wantError(t, err, ErrNoExport, "manifest.json")
	w.must(os.WriteFile(filepath.Join(dir, "manifest.json"), manifest, 0o600))
	pages := memory(100, 1)
	pages[5000] ^= 1
	w.must(os.WriteFile(filepath.Join(dir, "pages.img"), pages, 0o600))
	_, err = d.Import(t.Context(), "moved/one", dir, nil)
	wantError(t, err, snapshot.ErrCorrupt, "pages.img")
	pages[5000] ^= 1
	w.must(os.WriteFile(filepath.Join(dir, "pages.img"), pages, 0o600))
	if _, err = d.Import(t.Context(), "moved/one", dir, nil); err != nil {
		t.Errorf("it can't be imported when it is mended: %v", err)
	}
	if _, err := d.Import(t.Context(), "../x", dir, nil); err == nil {
		t.Error("a name that can't be was taken")
	}
}

func TestShown(t *testing.T) {
	_, d, name := slept(t, 2)
	details, err := d.Show(t.Context(), "default/web", 1)
	if err != nil || details.Name != name || details.Generation.Sequence != 1 || details.Manifest.ID != "web" || len(details.Manifest.Files) != 3 {
		t.Errorf("%+v, %v", details, err)
	}
	_, err = d.Show(t.Context(), "web", 7)
	wantError(t, err, durable.ErrNone, "no generation 7")
}
