package durable

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// What was committed is read as it was: by a restore, in parts, and by another node.
func TestRoundTrip(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	pages := memory(20_000, 2) // three packs
	copy(pages[5*pageSize:], pages[9*pageSize:10*pageSize])
	clear(pages[100*pageSize : 300*pageSize])
	want := checkpoint(pages)
	want["empty.img"] = nil
	want["filestore.img"] = memory(3, 9)[:2*pageSize+1]
	r := a.commit(t, w.image(1, 1, want))
	if !r.Full || r.Passes != 1 || r.Generation.Chain != 0 {
		t.Errorf("result %+v", r)
	}
	if got := len(w.data("p/")); got != 3 {
		t.Errorf("%d packs", got)
	}
	stored := 0
	for _, p := range a.newest(t).Packs {
		stored += p.Pages
	}
	if most := 20_000 - 200 - 1 + 25 + 1 + 3; stored > most {
		t.Errorf("%d pages are stored, %d are not zero nor twice there", stored, most)
	}
	want["empty.img"] = []byte{}
	a.has(t, 1, want)
	b := w.node("b")
	b.has(t, 0, want)

	rd, err := b.Open(t.Context(), 1, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(i), 7))
			for range 200 {
				for name, data := range want {
					f, err := rd.File(name)
					if err != nil {
						t.Error(err)
						return
					}
					off := rng.Int64N(int64(len(data)) + 10)
					p := make([]byte, rng.IntN(300_000))
					n, err := f.ReadAt(p, off)
					rest := data[min(off, int64(len(data))):]
					if !bytes.Equal(p[:n], rest[:min(n, len(rest))]) || n != min(len(p), len(rest)) || (err == io.EOF) != (n < len(p)) || err != nil && err != io.EOF {
						t.Errorf("%s: %d of %d bytes at %d of %d, %v", name, n, len(p), off, len(data), err)
						return
					}
				}
			}
		})
	}
	wg.Wait()
	if got := len(rd.cache.entries); got > rd.cache.limit {
		t.Errorf("%d frames are kept, at most %d should be", got, rd.cache.limit)
	}
}

// An idle image sends almost nothing the second time, one that is shifted by a page that page, and a busy one what changed.
func TestOnlyNewPagesAreSent(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	pages := memory(20_000, 3)
	a.commit(t, w.image(1, 1, checkpoint(pages)))
	total := int64(len(pages))
	for i, c := range []struct {
		what  string
		pages []byte
		share float64
	}{
		{"idle", pages, 0.001},
		{"three pages", slices.Concat(memory(3, 50), pages[3*pageSize:]), 0.001},
		{"shifted", slices.Concat(memory(1, 51), pages), 0.001},
		{"a tenth", slices.Concat(memory(2000, 52), pages[2000*pageSize:]), 0.06}, // half of each is random
	} {
		want := checkpoint(c.pages)
		b := w.node("b") // what it knows is in the store
		if _, err := b.Acquire(t.Context(), Claim{TakeOver: true}); err != nil {
			t.Fatal(err)
		}
		r := b.commit(t, w.image(1, uint64(i)+2, want))
		if r.Full || float64(r.Generation.Sent) > c.share*float64(total) {
			t.Errorf("%s: %d bytes of %d are sent, full %v", c.what, r.Generation.Sent, total, r.Full)
		}
		b.has(t, 0, want)
		if c.what == "idle" {
			if r.Generation.Sent > 20_000 {
				t.Errorf("idle: %d bytes are sent", r.Generation.Sent)
			}
		}
	}
}

// After 8 generations the next upload is a full one.
func TestChainEnds(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	pages := memory(100, 4)
	var chains []int
	for seq := range uint64(18) {
		chains = append(chains, a.commit(t, w.image(1, seq+1, checkpoint(pages))).Generation.Chain)
	}
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6, 7, 0, 1}; !slices.Equal(chains, want) {
		t.Errorf("chains %v, want %v", chains, want)
	}
}

// A snapshot that is there is not uploaded again; one that is another, older, or of an epoch that is over, is refused.
func TestWhatMayBeCommitted(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	im := w.image(1, 5, checkpoint(memory(10, 5)))
	first := a.commit(t, im)
	if again := a.commit(t, im); !again.Already || again.Generation.Manifest != first.Generation.Manifest {
		t.Errorf("again: %+v", again)
	}
	before := w.bucket.Names()
	for _, c := range []struct {
		im   Image
		want error
	}{
		{w.image(1, 5, checkpoint(memory(10, 6))), ErrDiverged},
		{w.image(1, 4, checkpoint(memory(10, 6))), ErrStale},
		{w.image(0, 6, checkpoint(memory(10, 6))), ErrStale},
		{w.image(2, 6, checkpoint(memory(10, 6))), ErrRolledBack},
	} {
		if _, err := a.Commit(t.Context(), c.im, CommitOptions{}); !errors.Is(err, c.want) {
			t.Errorf("%v, want %v", err, c.want)
		}
	}
	b := w.node("b")
	if _, err := b.Acquire(t.Context(), Claim{}); !errors.Is(err, ErrOwned) {
		t.Errorf("claim of what is claimed: %v", err)
	}
	if _, err := b.Acquire(t.Context(), Claim{TakeOver: true, Restore: 5}); err != nil {
		t.Fatal(err)
	}
	for what, err := range map[string]error{
		"commit": func() error {
			_, err := a.Commit(t.Context(), w.image(1, 6, checkpoint(memory(10, 6))), CommitOptions{})
			return err
		}(),
		"release": a.Release(t.Context()), "running": a.Running(t.Context()),
	} {
		if !errors.Is(err, ErrFenced) {
			t.Errorf("%s by the node of before: %v", what, err)
		}
	}
	if !slices.Equal(before, w.bucket.Names()) {
		t.Error("something was uploaded in vain")
	}
	if err := errors.Join(b.Running(t.Context()), b.Release(t.Context()), b.Release(t.Context())); err != nil {
		t.Error(err)
	}
	h, err := a.Head(t.Context())
	if err != nil || h.State != Asleep || h.Owner != nil || h.Epoch != 2 || h.Restoring != 0 {
		t.Errorf("head %+v, %v", h, err)
	}
	if _, err := a.Acquire(t.Context(), Claim{Restore: 5}); err != nil {
		t.Errorf("claim of what was released: %v", err)
	}
}

// A local image that isn't what its manifest says is not uploaded.
func TestImagesAreCompared(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	for name, change := range map[string]func(content){
		"flipped":   func(c content) { c["pages.img"][pageSize] ^= 1 },
		"truncated": func(c content) { c["pages.img"] = c["pages.img"][:pageSize] },
	} {
		c := checkpoint(memory(600, 7))
		im := w.image(1, 1, c)
		c = maps.Clone(c)
		c["pages.img"] = slices.Clone(c["pages.img"])
		change(c)
		other := w.image(1, 1, c)
		im.Dir = other.Dir
		_, err := a.Commit(t.Context(), im, CommitOptions{})
		want := snapshot.ErrCorrupt
		if name == "truncated" {
			want = snapshot.ErrTruncated
		}
		if !errors.Is(err, want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, names := range [][]string{{"../pages.img"}, {"b", "a"}, {"a", "a"}, {""}, {".."}} {
		m := snapshot.Manifest{Sequence: 1, Epoch: 1}
		for _, name := range names {
			m.Files = append(m.Files, snapshot.File{Name: name})
		}
		if _, err := a.Commit(t.Context(), Image{Document: localDocument(t, m), Dir: t.TempDir()}, CommitOptions{}); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("files %q: %v", names, err)
		}
	}
	if got := w.data("m/"); len(got) != 0 {
		t.Errorf("manifests %v", got)
	}
}

// A frame is compressed where that saves 6 %, and kept as it is elsewhere.
func TestFramesThatDontShrink(t *testing.T) {
	c, err := newCodec()
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, frameSize)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	almost := slices.Clone(noise)
	clear(almost[:frameSize/25]) // 4 %
	for what, k := range map[string]struct {
		pages []byte
		kind  byte
	}{"noise": {noise, rawFrame}, "almost noise": {almost, rawFrame}, "memory": {memory(64, 1), zstdFrame}} {
		plain := c.encode([]byte("before"), k.pages)[len("before"):]
		got, err := c.decode(new([frameSize]byte), plain, framePages)
		if plain[0] != k.kind || err != nil || !bytes.Equal(got, k.pages) || k.kind == rawFrame && len(plain) != 1+frameSize {
			t.Errorf("%s: kind %d, %d bytes, %v", what, plain[0], len(plain), err)
		}
	}
}

// discarding is a store that keeps no packs.
type discarding struct {
	store.Store
	sends atomic.Int64
	most  atomic.Int64
}

func (d *discarding) Put(ctx context.Context, name string, body []byte, cond store.Condition) (store.Version, error) {
	if !strings.HasPrefix(name, full("p/")) {
		return d.Store.Put(ctx, name, body, cond)
	}
	n := d.sends.Add(1)
	defer d.sends.Add(-1)
	for most := d.most.Load(); n > most && !d.most.CompareAndSwap(most, n); most = d.most.Load() {
	}
	time.Sleep(time.Millisecond) // as a store that is slower than we are
	return "1", nil
}

// However large the image, an upload takes a few packs' memory.
func TestUploadTakesBoundedMemory(t *testing.T) {
	w := newWorld(t)
	d := &discarding{}
	a := w.owner("a", func(c *Config) { d.Store, c.Store = c.Store, d })
	noise := make([]byte, 256<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(noise)
	im := w.image(1, 1, content{"pages.img": noise})
	noise = nil
	runtime.GC()
	var before, now runtime.MemStats
	runtime.ReadMemStats(&before)
	var most uint64
	var mu sync.Mutex
	var last Progress
	_, err := a.Commit(t.Context(), im, CommitOptions{Progress: func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		if last.Done>>24 != p.Done>>24 {
			runtime.GC()
			runtime.ReadMemStats(&now)
			most = max(most, now.HeapAlloc)
		}
		last = p
	}})
	if err != nil {
		t.Fatal(err)
	}
	if last.Image != 256<<20 || last.Moved < 256<<20 {
		t.Errorf("progress %+v", last)
	}
	// Three packs of 32 MiB, whose buffers are made longer by copying, and the hashes.
	if limit := uint64(3*32+64) << 20; most-before.HeapAlloc > limit {
		t.Errorf("%d MiB are taken", (most-before.HeapAlloc)>>20)
	}
	if d.most.Load() > 3 {
		t.Errorf("%d packs are sent at a time", d.most.Load())
	}
}

// What gets past the frames' tags, as a fault of ours would, is found by the checksums, and by Verify.
func TestWhatIsRestoredIsCompared(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	a.commit(t, w.image(1, 1, checkpoint(memory(600, 1))))
	for what, change := range map[string]func(r *Reader){
		"an extent": func(r *Reader) { r.manifest.Files[1].extents[0].slot++; r.manifest.Files[1].extents[0].count-- },
		"a checksum": func(r *Reader) {
			r.document.Files[1].CRC32C[1] ^= 1
			r.manifest.Files[1].Root = r.manifest.Files[0].Root
		},
	} {
		r, err := a.Open(t.Context(), 1, OpenOptions{})
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		dir := t.TempDir()
		if err := r.Restore(t.Context(), dir, nil); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("%s: restore: %v", what, err)
		}
		if err := r.Verify(t.Context(), nil); !errors.Is(err, snapshot.ErrCorrupt) {
			t.Errorf("%s: verify: %v", what, err)
		}
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("%s: left are %v", what, left)
		}
		r.Close()
	}
	// Nor is anything overwritten.
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "pages.img"), []byte("a person's"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := a.Open(t.Context(), 1, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Restore(t.Context(), dir, nil); !errors.Is(err, os.ErrExist) {
		t.Errorf("restore: %v", err)
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "pages.img")); string(got) != "a person's" {
		t.Errorf("it is %q now", got)
	}
}
