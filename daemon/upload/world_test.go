package upload

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// world is a node's data directory, and a bucket.
type world struct {
	t      *testing.T
	data   string
	bucket *memstore.Bucket
	log    testlog.Buffer
}

func newWorld(t *testing.T) *world {
	t.Helper()
	return &world{t: t, data: t.TempDir(), bucket: memstore.NewBucket()}
}

// daemon is a running uploader.
type daemon struct {
	*Uploader
	store *memstore.Store
	stop  func() // as a crash does, but that its goroutines have ended afterwards
}

// daemon starts one; set changes its options.
func (w *world) daemon(set ...func(*Options)) *daemon {
	w.t.Helper()
	d := &daemon{store: w.bucket.Store()}
	o := Options{
		DataDir: w.data, Open: func() (store.Store, error) { return d.store, nil }, URL: "s3://bucket/p?region=here", Node: "node-1",
		Keys:      durable.Keyring{Current: durable.InsecurePlaintext()},
		ScanEvery: 5 * time.Millisecond, FirstPause: time.Millisecond, MostPause: 10 * time.Millisecond,
		Log: slog.New(slog.NewTextHandler(&w.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, f := range set {
		f(&o)
	}
	d.Uploader = New(o)
	d.leftover.busy = func() (time.Duration, error) { return 0, nil } // however busy the machine of the tests is
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		d.Run(ctx)
	}()
	d.stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	w.t.Cleanup(func() {
		d.stop()
		if w.t.Failed() {
			w.t.Log(w.log.String())
		}
	})
	return d
}

// key names a workload of the tests.
func key(id string) node.Key { return node.Key{Namespace: "default", ID: id} }

func (w *world) dir(id string) string { return snapshot.DirFor(w.data, "default", id, "") }

// lineageOf is a random id as the local tier makes it, here told by a workload's id.
func lineageOf(id string) string { return fmt.Sprintf("%032x", crc32.ChecksumIEEE([]byte(id))) }

// sleep puts a snapshot where a shim would, and removes the one before.
func (w *world) sleep(id string, sequence uint64, pages []byte) {
	w.sleepAs(id, lineageOf(id), sequence, pages)
}

func (w *world) sleepAs(id, lineage string, sequence uint64, pages []byte) {
	w.t.Helper()
	dir := filepath.Join(w.dir(id), strconv.FormatUint(sequence, 10))
	w.writeSnapshot(dir, snapshot.Manifest{Sequence: sequence, Namespace: "default", ID: id, Lineage: lineage, Created: time.Now().UTC()}, pages)
	w.head(id, snapshot.Head{State: snapshot.Asleep, Sequence: sequence, Time: time.Now().UTC(), Namespace: "default", ID: id, Lineage: lineage})
	w.must(os.RemoveAll(filepath.Join(w.dir(id), strconv.FormatUint(sequence-1, 10))))
}

// writeSnapshot writes one in dir.
func (w *world) writeSnapshot(dir string, m snapshot.Manifest, pages []byte) {
	w.t.Helper()
	w.must(os.MkdirAll(filepath.Join(dir, "image"), 0o700))
	files := map[string][]byte{"checkpoint.img": fmt.Append(nil, "state ", m.Sequence), "pages.img": pages, "pages_meta.img": fmt.Append(nil, "meta ", m.Sequence)}
	for _, name := range slices.Sorted(maps.Keys(files)) {
		w.must(os.WriteFile(filepath.Join(dir, "image", name), files[name], 0o600))
		f := snapshot.File{Name: name, Size: int64(len(files[name])), CRC32C: []uint32{}}
		for chunk := range slices.Chunk(files[name], snapshot.ChunkSize) {
			f.CRC32C = append(f.CRC32C, crc32.Checksum(chunk, castagnoli))
		}
		m.Files = append(m.Files, f)
	}
	w.document(filepath.Join(dir, "manifest.json"), "hibernate.manifest", m)
}

func (w *world) head(id string, h snapshot.Head) {
	w.t.Helper()
	w.document(filepath.Join(w.dir(id), "head.json"), "hibernate.head", h)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// document writes one as the local tier does, by rename.
func (w *world) document(path, format string, body any) {
	w.t.Helper()
	raw, err := json.Marshal(body)
	w.must(err)
	text := fmt.Appendf(nil, "{\"format\":%q,\"version\":1,\"crc32c\":\"%08x\",\"body\":%s}\n", format, crc32.Checksum(raw, castagnoli), raw)
	w.must(os.WriteFile(path+".new", text, 0o600))
	w.must(os.Rename(path+".new", path))
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// memory is n pages. Equal seeds give equal ones.
func memory(n int, seed byte) []byte {
	out := make([]byte, n*4096)
	r := rand.NewChaCha8([32]byte{seed})
	_, _ = r.Read(out)
	return out
}

// eventually waits for what the daemon does.
func (w *world) eventually(what string, done func() bool) {
	w.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !done(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			w.t.Fatalf("it doesn't come to this: %s", what)
		}
	}
}

// comes waits for what a channel tells.
func (w *world) comes(told <-chan struct{}) {
	w.t.Helper()
	select {
	case <-told:
	case <-time.After(20 * time.Second):
		w.t.Fatal("it doesn't begin")
	}
}

// uploaded waits until the store has a sequence of a workload's, and the record says so.
func (w *world) uploaded(d *daemon, id string, sequence uint64) Copies {
	w.t.Helper()
	var c Copies
	w.eventually(fmt.Sprintf("snapshot %d of %s is uploaded", sequence, id), func() bool {
		c, _ = d.Copies(key(id))
		return c.Durable == sequence && c.Since.IsZero()
	})
	return c
}

// other is the durable tier as another node sees it.
func (w *world) other(name string) *durable.Lineage {
	w.t.Helper()
	t, err := durable.New(durable.Config{Store: w.bucket.Store(), Keys: durable.Keyring{Current: durable.InsecurePlaintext()}, Node: "node-2"})
	w.must(err)
	l, err := t.Lineage(name)
	w.must(err)
	return l
}

// sequences are those of the generations in the store.
func (w *world) sequences(name string) (all []uint64) {
	w.t.Helper()
	h, err := w.other(name).Head(w.t.Context())
	w.must(err)
	for _, g := range h.Generations {
		all = append(all, g.Sequence)
	}
	return all
}
