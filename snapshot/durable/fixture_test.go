package durable

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// world is a bucket with a clock, and nodes that work on it.
type world struct {
	t      testing.TB
	bucket *memstore.Bucket
	mu     sync.Mutex
	time   time.Time
	key    KeyWrapper
}

func newWorld(t testing.TB) *world {
	w := &world{t: t, bucket: memstore.NewBucket(), time: time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC), key: testKey(1)}
	w.bucket.SetClock(w.now)
	return w
}

func testKey(n byte) KeyWrapper { return newFileKey(bytes.Repeat([]byte{n}, keyLength)) }

func (w *world) now() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.time
}

func (w *world) pass(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.time = w.time.Add(d)
}

const testName = "default/0123"

// node is one that has its own way to the bucket.
type node struct {
	*Lineage
	store *memstore.Store
}

func (w *world) node(name string, change ...func(*Config)) node {
	s := w.bucket.Store()
	cfg := Config{Store: s, Keys: Keyring{Current: w.key}, Node: name}
	for _, c := range change {
		c(&cfg)
	}
	tier, err := New(cfg)
	if err != nil {
		w.t.Fatal(err)
	}
	tier.now = w.now
	tier.pause = func(ctx context.Context, d time.Duration) error {
		if d >= tier.cfg.Grace/8 { // a lease's: nothing waits for them
			<-ctx.Done()
		}
		return ctx.Err()
	}
	l, err := tier.Lineage(testName)
	if err != nil {
		w.t.Fatal(err)
	}
	return node{l, s}
}

// owner is a node that has claimed the workload.
func (w *world) owner(name string, change ...func(*Config)) node {
	n := w.node(name, change...)
	if _, err := n.Acquire(w.t.Context(), Claim{}); err != nil {
		w.t.Fatal(err)
	}
	return n
}

// files by name.
type content map[string][]byte

// image is a snapshot as the local tier has it.
func (w *world) image(epoch, sequence uint64, c content) Image {
	w.t.Helper()
	dir := w.t.TempDir()
	m := snapshot.Manifest{Sequence: sequence, Epoch: epoch, Namespace: "default", ID: "c1", Created: w.now(), SpecDigest: "sha256:secret"}
	for _, name := range slices.Sorted(maps.Keys(c)) {
		data := c[name]
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			w.t.Fatal(err)
		}
		f := snapshot.File{Name: name, Size: int64(len(data)), CRC32C: []uint32{}}
		for chunk := range slices.Chunk(data, snapshot.ChunkSize) {
			f.CRC32C = append(f.CRC32C, crc32.Checksum(chunk, castagnoli))
		}
		m.Files = append(m.Files, f)
	}
	return Image{Document: localDocument(w.t, m), Dir: dir}
}

func localDocument(t testing.TB, m snapshot.Manifest) []byte {
	t.Helper()
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Appendf(nil, "{\"format\":\"hibernate.manifest\",\"version\":1,\"crc32c\":\"%08x\",\"body\":%s}\n", crc32.Checksum(body, castagnoli), body)
}

// memory is n pages as those of a heap: half of each is random. Equal seeds give equal pages.
func memory(n int, seed uint64) []byte {
	out := make([]byte, n*pageSize)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	for page := range slices.Chunk(out, pageSize) {
		_, _ = r.Read(page[:pageSize/2])
		copy(page[pageSize/2:], bytes.Repeat([]byte("0123456789abcdef"), pageSize/32))
	}
	return out
}

func checkpoint(pages []byte) content {
	return content{"checkpoint.img": memory(30, 1)[:100_001], "pages.img": pages, "pages_meta.img": []byte("meta")}
}

// commit makes a snapshot a generation.
func (n node) commit(t testing.TB, im Image) Result {
	t.Helper()
	r, err := n.Commit(t.Context(), im, CommitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// restored gives what Restore writes.
func (n node) restored(ctx context.Context, t testing.TB, sequence uint64) (content, error) {
	t.Helper()
	r, err := n.Open(ctx, sequence, OpenOptions{})
	if err != nil {
		return nil, err
	}
	defer r.Close()
	dir := t.TempDir()
	if err := r.Restore(ctx, dir, nil); err != nil {
		if left, _ := os.ReadDir(dir); len(left) != 0 {
			t.Errorf("a restore that failed has left %v", left)
		}
		return nil, err
	}
	e, err := snapshot.OpenExport(dir)
	if err != nil {
		t.Fatal(err)
	}
	m, ok := e.Manifest()
	if !ok || m.Sequence != r.Generation().Sequence {
		t.Errorf("manifest.json: %v, sequence %d", ok, m.Sequence)
	}
	out := content{}
	for _, f := range m.Files {
		if out[f.Name], err = os.ReadFile(filepath.Join(dir, f.Name)); err != nil {
			t.Fatal(err)
		}
	}
	return out, nil
}

// has fails the test unless a generation is what was committed, by each way of reading it.
func (n node) has(t testing.TB, sequence uint64, want content) {
	t.Helper()
	got, err := n.restored(t.Context(), t, sequence)
	if err != nil {
		t.Fatalf("generation %d: %v", sequence, err)
	}
	if !equal(got, want) {
		t.Fatalf("generation %d is not what was committed", sequence)
	}
	r, err := n.Open(t.Context(), sequence, OpenOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Verify(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// newest is the manifest of the newest generation.
func (n node) newest(t testing.TB) *manifest {
	t.Helper()
	h, err := n.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	m, err := n.manifest(t.Context(), n.keys, h.Generations[0])
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func equal(a, b content) bool {
	return maps.EqualFunc(a, b, bytes.Equal)
}

// data are the names of the objects of the lineage, below its prefix.
func (w *world) data(prefix string) []string {
	var out []string
	for _, name := range w.bucket.Names() {
		if len(name) > len(dataPrefix+testName)+1 && name[:len(dataPrefix+testName)] == dataPrefix+testName {
			if rest := name[len(dataPrefix+testName)+1:]; len(rest) >= len(prefix) && rest[:len(prefix)] == prefix {
				out = append(out, rest)
			}
		}
	}
	return out
}

// body of an object by its name below the lineage's data.
func full(name string) string { return dataPrefix + testName + "/" + name }

var _ store.Store = (*memstore.Store)(nil)
