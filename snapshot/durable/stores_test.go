package durable

import (
	"errors"
	"os"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// Each kind of store does what a lineage needs of it: claims, commits, increments, readers and collections of two nodes. Real
// servers only by make test-store, and make test-seaweedfs.
func TestOnEachStore(t *testing.T) {
	for what, url := range map[string]func(t *testing.T) string{
		"directory": func(t *testing.T) string {
			dir := t.TempDir()
			if err := os.Chmod(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			return "file://" + dir
		},
		"http":          func(t *testing.T) string { return served(t, storetest.Versitygw(t, false)) },
		"tls":           func(t *testing.T) string { return served(t, storetest.Versitygw(t, true)) },
		"seaweedfs":     func(t *testing.T) string { return served(t, storetest.Seaweedfs(t, false)) },
		"seaweedfs-tls": func(t *testing.T) string { return served(t, storetest.Seaweedfs(t, true)) },
	} {
		t.Run(what, func(t *testing.T) { t.Parallel(); onStore(t, url(t)) })
	}
}

func served(t *testing.T, s *storetest.Server) string { return s.URL(s.Bucket(t), "some/prefix") }

func onStore(t *testing.T, url string) {
	w := newWorld(t) // for images
	join := func(name string, grace time.Duration) node {
		s, err := open.URL(url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		tier, err := New(Config{Store: store.Retried(s, store.Patience{}), Keys: Keyring{Current: w.key}, Node: name, Grace: grace})
		if err != nil {
			t.Fatal(err)
		}
		l, err := tier.Lineage(testName)
		if err != nil {
			t.Fatal(err)
		}
		return node{Lineage: l}
	}
	a, b := join("a", time.Hour), join("b", time.Hour)
	if _, err := a.Head(t.Context()); !errors.Is(err, ErrNone) {
		t.Fatalf("an empty store: %v", err)
	}
	if _, err := a.Acquire(t.Context(), Claim{}); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(t.Context(), Claim{}); !errors.Is(err, ErrOwned) {
		t.Fatalf("claimed twice: %v", err)
	}
	var last content
	for seq := uint64(1); seq <= 5; seq++ {
		last = checkpoint(memory(9000, seq%2))
		a.commit(t, w.image(1, seq, last))
	}
	if again := a.commit(t, w.image(1, 6, last)); again.Full || again.Generation.Sent > 30_000 {
		t.Errorf("idle: %+v", again.Generation)
	}
	if err := a.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Acquire(t.Context(), Claim{Restore: 6}); err != nil {
		t.Fatal(err)
	}
	b.has(t, 6, last)
	if _, err := a.Commit(t.Context(), w.image(1, 7, last), CommitOptions{}); !errors.Is(err, ErrFenced) {
		t.Errorf("a commit under an old epoch: %v", err)
	}
	if err := b.Running(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got, err := b.Collect(t.Context(), CollectOptions{}); err != nil || len(got.Dropped) != 3 || len(got.Deleted) != 0 {
		t.Errorf("within the grace: %+v, %v", got, err)
	}
	short := join("c", 8*time.Second) // by the store's clock; shorter ones are lost on busy machines
	r, err := short.Open(t.Context(), 6, OpenOptions{Lease: true})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	gone := 0
	for began := time.Now(); gone < 3 && time.Since(began) < time.Minute; time.Sleep(100 * time.Millisecond) {
		got, err := short.Collect(t.Context(), CollectOptions{})
		if err != nil {
			t.Fatal(err)
		}
		gone += len(got.Deleted)
	}
	if gone < 3 {
		t.Errorf("%d objects were deleted, and the manifests alone are 3", gone)
	}
	if err := r.Restore(t.Context(), t.TempDir(), nil); err != nil {
		t.Errorf("a reader with a lease: %v", err)
	}
	b.has(t, 4, checkpoint(memory(9000, 0)))
	b.has(t, 5, checkpoint(memory(9000, 1)))
	names, err := a.t.Names(t.Context())
	if err != nil || len(names) != 1 || names[0] != testName {
		t.Errorf("names %q, %v", names, err)
	}
	if err := b.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := a.Head(t.Context()); !errors.Is(err, ErrDestroyed) {
		t.Errorf("destroyed: %v", err)
	}
}
