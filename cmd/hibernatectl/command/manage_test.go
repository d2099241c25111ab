package command

import (
	"bytes"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	tier "github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// withStored is a bucket with two snapshots of a workload of node-2's, and a host whose daemon has it.
func withStored(t *testing.T) (host, *memstore.Bucket) {
	t.Helper()
	bucket := memstore.NewBucket()
	commit(t, bucket, durable.InsecurePlaintext(), "default/0a")
	h := newHost(t)
	h.daemonWith(&daemon.StoreOptions{
		URL: "s3://bucket", Node: "node-1", Keys: durable.Keyring{Current: durable.InsecurePlaintext()},
		Open: func() (store.Store, error) { return bucket.Store(), nil },
	})
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if out, _ := h.run(exitOK, "version"); strings.Contains(out, ": fences") {
			return h, bucket
		} else if time.Now().After(deadline) {
			t.Fatal(out)
		}
	}
}

var pages = bytes.Repeat([]byte("page"), 5000)

// commit makes two snapshots of a lineage that nobody owns.
func commit(t *testing.T, bucket *memstore.Bucket, key durable.KeyWrapper, name string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	t2, err := durable.New(durable.Config{Store: bucket.Store(), Keys: durable.Keyring{Current: key}, Node: "node-2"})
	must(err)
	l, err := t2.Lineage(name)
	must(err)
	_, err = l.Acquire(t.Context(), durable.Claim{})
	must(err)
	for sequence := uint64(1); sequence <= 2; sequence++ {
		dir := t.TempDir()
		m := tier.Manifest{
			Sequence: sequence, Namespace: "default", ID: "web", Created: time.Now().UTC(), Host: tier.Host{Node: "node-2"},
			Runtime: tier.Runtime{Version: "r1", Platform: "systrap"}, Containers: []tier.Container{{ID: "web", Image: "docker.io/web:1"}},
		}
		for _, name := range []string{"checkpoint.img", "pages.img", "pages_meta.img"} {
			must(os.WriteFile(filepath.Join(dir, name), pages, 0o600))
			m.Files = append(m.Files, tier.File{Name: name, Size: int64(len(pages)), CRC32C: []uint32{crc32.Checksum(pages, crc32.MakeTable(crc32.Castagnoli))}})
		}
		document, err := tier.EncodeManifest(m)
		must(err)
		_, err = l.Commit(t.Context(), durable.Image{Document: document, Dir: dir}, durable.CommitOptions{})
		must(err)
	}
	must(l.Release(t.Context()))
}

func TestSnapshotsAreManaged(t *testing.T) {
	h, _ := withStored(t)
	out, _ := h.run(exitOK, "snapshots", "show", "default/0a@1")
	wantText(t, out, "default/0a", "1 of epoch 0", "node-2", "runsc r1, systrap", "docker.io/web:1", "pages.img")
	out, _ = h.run(exitOK, "-o", "json", "snapshots", "show", "default/0a")
	wantText(t, out, `"sequence": "2"`, `"platform": "systrap"`)
	_, errs := h.run(exitNotFound, "snapshots", "show", "default/0a@9")
	wantText(t, errs, "no generation 9")

	out, _ = h.run(exitOK, "snapshots", "pin", "default/0a@1")
	wantText(t, out, "snapshot 1 of default/0a is pinned")
	out, _ = h.run(exitOK, "snapshots")
	wantText(t, out, "pinned")
	_, errs = h.run(exitRefused, "snapshots", "rm", "default/0a@1")
	wantText(t, errs, "pinned", "snapshots unpin default/0a@1")
	_, errs = h.run(exitRefused, "snapshots", "rm", "default/0a")
	wantText(t, errs, "pinned")
	out, _ = h.run(exitOK, "snapshots", "unpin", "default/0a@1")
	wantText(t, out, "is not pinned")
	out, _ = h.run(exitOK, "snapshots", "rm", "default/0a@1")
	wantText(t, out, "snapshot 1 of default/0a is removed")

	dir := filepath.Join(t.TempDir(), "export")
	_, errs = h.run(exitOK, "snapshots", "export", "--progress", "default/0a", dir)
	wantText(t, errs, " of ")
	if got, err := os.ReadFile(filepath.Join(dir, "pages.img")); err != nil || !bytes.Equal(got, pages) {
		t.Errorf("%d bytes, %v", len(got), err)
	}
	_, errs = h.run(exitError, "snapshots", "export", "default/0a", dir)
	wantText(t, errs, "is not empty")
	archive := filepath.Join(t.TempDir(), "export.tar")
	out, _ = h.run(exitOK, "snapshots", "export", "default/0a@2", "--tar", archive)
	wantText(t, out, "snapshot 2 of default/0a", "in clear")
	text, errs := h.run(exitOK, "snapshots", "export", "default/0a", "--tar", "-")
	if wantText(t, errs, "standard output"); len(text) < 3*len(pages) {
		t.Errorf("%d bytes on standard output", len(text))
	}
	_, errs = h.run(exitNotFound, "snapshots", "export", "default/nobody", filepath.Join(t.TempDir(), "x"))
	wantText(t, errs, "default/nobody")

	out, _ = h.run(exitOK, "snapshots", "import", dir, "moved/dir")
	wantText(t, out, "it is snapshot 2 of moved/dir")
	h.run(exitOK, "snapshots", "import", archive, "moved/tar")
	h.run(exitOK, "snapshots", "verify", "moved/tar@2")
	_, errs = h.run(exitRefused, "snapshots", "import", dir, "moved/dir")
	wantText(t, errs, "choose another name")
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(archive), ".import-*")); len(left) != 0 {
		t.Errorf("left: %q", left)
	}

	out, _ = h.run(exitOK, "snapshots", "rm", "default/0a")
	wantText(t, out, "destroyed", "nothing can read them any more")
	out, _ = h.run(exitOK, "snapshots", "ls", "default/0a")
	wantText(t, out, "destroyed")
	_, errs = h.run(exitNotFound, "snapshots", "show", "default/0a")
	wantText(t, errs, "destroyed on purpose")
	for _, args := range [][]string{
		{"show"}, {"show", "a@0"}, {"show", "a@x"}, {"pin", "a", "b"}, {"rm"}, {"export", "a"}, {"export", "a", "b", "--tar", "c"},
		{"export", "--local", "a@1", "b"}, {"export", "--local", "a", "b"}, {"import", "a"}, {"rewrap", "a", "b"},
	} {
		h.run(exitUsage, append([]string{"snapshots"}, args...)...)
	}
}

func TestNothingIsExportedFromANodeWithoutIt(t *testing.T) {
	h := newHost(t)
	_, errs := h.run(exitNotFound, "snapshots", "export", "--local", "default/web", filepath.Join(t.TempDir(), "x"))
	wantText(t, errs, "this node has no snapshot of default/web")
}

func TestSnapshotTable(t *testing.T) {
	var out bytes.Buffer
	if err := printSnapshot(&out, &daemonv1.ShowSnapshotResponse{
		Lineage:    &daemonv1.Lineage{Name: "default/0a.1", Namespace: "default", Id: "redis", Owner: "node-1", Key: "file:0011223344556677"},
		Generation: &daemonv1.Generation{Sequence: 7, Epoch: 1, CreatedUnixMs: before(time.Minute), ImageBytes: 24_222_000, SentBytes: 250_000, FetchBytes: 9_000_000, Pinned: true, Chain: 3},
		Parent:     6, Node: "node-1", Runtime: "release-20260901.0", Platform: "systrap",
		Containers: []*daemonv1.SnapshotContainer{{Id: "redis", Image: "docker.io/library/redis:7"}},
		Files:      []*daemonv1.SnapshotFile{{Name: "checkpoint.img", Bytes: 300_000}, {Name: "pages.img", Bytes: 24_000_000}},
	}, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshot.txt", out.Bytes())
}

func TestRewrappedTable(t *testing.T) {
	var out bytes.Buffer
	all := []*daemonv1.Rewrapped{
		{Name: "default/0a.1", From: "file:00", To: "file:11"}, {Name: "default/0b.2", From: "file:11", To: "file:11", Already: true},
		{Name: "default/0c.3", From: "file:22", To: "file:11", Error: "wrong key for the durable tier"},
	}
	for _, dry := range []bool{true, false} {
		if err := printRewrapped(&out, all, dry); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	golden(t, "snapshots-rewrap.txt", out.Bytes())
}

// TestDeletionIsTold: before delete-after ends a sleeper, and destroys what a workload has left behind.
func TestDeletionIsTold(t *testing.T) {
	w := func(slept time.Duration) *daemonv1.Workload {
		return &daemonv1.Workload{Status: &shimv1.StatusResponse{
			State: "asleep", StateSinceUnixMs: before(slept), Settings: []*shimv1.Setting{{Key: "delete-after", Value: "4h0m0s"}},
		}}
	}
	for slept, want := range map[time.Duration]string{
		time.Hour: "asleep 1h", 3*time.Hour + time.Minute: "asleep 3h1m, deleted in 59m", 5 * time.Hour: "asleep 5h, deleted in 0s",
	} {
		if got := stateFor(w(slept), now); got != want {
			t.Errorf("%q, want %q", got, want)
		}
		if got := deletedIn(w(slept).GetStatus(), now); (slept == time.Hour) != (got == "in 3h, unless it is woken: delete-after") {
			t.Errorf("inspect: %q", got)
		}
	}
	note := lineageNote(&daemonv1.Lineage{GoneUnixMs: before(time.Hour), DeleteUnixMs: before(-2 * time.Hour)}, nil, now)
	if note != "container gone 1h ago, destroyed in 2h" {
		t.Errorf("%q", note)
	}
	c := &daemonv1.Workload{Copies: &daemonv1.Copies{LocalSequence: 3, DurableSequence: 2, LackingUnixMs: before(time.Hour), Final: true, OverQuota: true}}
	if got := copies(c, now); got != "local 3, store 2 (over quota)" {
		t.Errorf("%q", got)
	}
}

// Of a workload that any node may run it is told whose it was last, and whether the newest snapshot is all of it.
func TestOwnerOfLineage(t *testing.T) {
	for want, l := range map[string]*daemonv1.Lineage{
		"a; ":                              {Owner: "a", Last: "b", State: "running"},
		"any, last b; ":                    {Last: "b", State: "asleep"},
		"any, last b; it ran on and ended": {Last: "b", State: "running"},
		"; ":                               {State: "asleep"},
	} {
		if got := ownerText(l) + "; " + lineageNote(l, nil, time.Now()); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := workloadOf(&daemonv1.Lineage{Namespace: "default", Id: "c1", Identity: "shop/db"}); got != "default/shop/db" {
		t.Errorf("%q", got)
	}
}
