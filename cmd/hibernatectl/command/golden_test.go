package command

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

var update = flag.Bool("update", false, "write testdata")

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func before(d time.Duration) int64 { return now.Add(-d).UnixMilli() }

// golden compares a text with testdata/<name>.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (-update writes it)\ngot:\n%s\nwant:\n%s", path, got, want)
	}
}

func workload(id, state string, change func(*daemonv1.Workload)) *daemonv1.Workload {
	w := &daemonv1.Workload{
		Status: &shimv1.StatusResponse{
			Namespace: "default", Id: id, State: state, StateSinceUnixMs: before(90 * time.Second),
			CreatedUnixMs: before(50 * time.Hour), Ports: []uint32{6379}, MemoryBytes: 97 << 20, Wakes: 7,
		},
		Idle: &daemonv1.Idle{Mode: "auto", IdleForMs: 42_000, SleepsInMs: 258_000, TimeoutMs: 300_000},
	}
	change(w)
	return w
}

// zoo has one workload of each kind.
func zoo() []*daemonv1.Workload {
	return []*daemonv1.Workload{
		workload("redis", "awake", func(w *daemonv1.Workload) {
			w.Status.ImageBytes, w.Copies = 24_222_000, &daemonv1.Copies{LocalSequence: 7, DurableSequence: 7}
		}),
		workload("nginx", "asleep", func(w *daemonv1.Workload) {
			w.Status.ImageBytes, w.Status.MemoryBytes, w.Status.Ports = 1_100_000_000, 0, []uint32{80, 443}
			w.Idle.SleepsInMs = -1
			w.Copies = &daemonv1.Copies{LocalSequence: 3, DurableSequence: 2, LackingUnixMs: before(5 * time.Minute), Error: "store is unavailable"}
		}),
		workload("fenced", "asleep", func(w *daemonv1.Workload) {
			w.Copies = &daemonv1.Copies{LocalSequence: 3, LackingUnixMs: before(time.Hour), Error: "fenced", Final: true}
		}),
		workload("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "awake", func(w *daemonv1.Workload) {
			w.Status.Namespace, w.Status.Ports, w.Status.Wakes = "k8s.io", nil, 0
			w.Status.Blockers = []*shimv1.Reason{{Code: "exec", Detail: "1 exec is live"}}
			w.Idle.SleepsInMs = -1
		}),
		workload("by-hand", "awake", func(w *daemonv1.Workload) { w.Idle.Mode, w.Idle.SleepsInMs = "manual", -1 }),
		workload("no-daemon", "awake", func(w *daemonv1.Workload) { w.Idle, w.Status.Sequence = nil, 5 }),
		{Status: &shimv1.StatusResponse{Namespace: "default", Id: "hung", State: "unknown"}, Unreachable: "deadline exceeded"},
	}
}

func TestListTable(t *testing.T) {
	var out bytes.Buffer
	if err := printList(&out, zoo(), now, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "ls.txt", out.Bytes())
}

func TestListJSON(t *testing.T) {
	for range 10 { // protojson's spaces vary from build to build, not from call to call; the order of fields never does
		var out bytes.Buffer
		if err := printJSON(&out, &daemonv1.ListResponse{Workloads: zoo()[:1]}); err != nil {
			t.Fatal(err)
		}
		golden(t, "ls.json", out.Bytes())
	}
}

func TestInspect(t *testing.T) {
	w := workload("redis", "awake", func(w *daemonv1.Workload) {
		s := w.Status
		image := "docker.io/library/redis:8"
		s.Image, s.Addresses, s.Gate, s.HolderPid, s.SandboxPid = &image, []string{"10.88.0.7/16"}, "open", 4711, 4720
		s.ImageBytes, s.Sequence, s.Hibernations, s.RunscVersion = 24_222_000, 7, 8, "release-20260905.0"
		s.Blockers = []*shimv1.Reason{{Code: "lease", Detail: `lease "backup" keeps it awake`}}
		s.Containers = []*shimv1.Container{{Id: "redis", State: "running", Execs: 0}}
		s.LastHibernate = &shimv1.Transition{
			Id: "8f2c", Kind: "hibernate", Outcome: "slept", Reason: "idle", TotalMs: 212.4, StartedUnixMs: before(10 * time.Minute),
			Steps: []*shimv1.Step{{Name: "guard", Ms: 9.7}, {Name: "quiesce", StartMs: 9.7, Ms: 21.1}},
		}
		s.LastWake = &shimv1.Transition{
			Id: "c0de", Kind: "wake", Outcome: "restored", Reason: "connection", TotalMs: 163.2, StartedUnixMs: before(90 * time.Second),
			Steps: []*shimv1.Step{
				{Name: "restore", StartMs: 61, Ms: 96.4}, {Name: "verify", Ms: 31.2}, {Name: "boot", Ms: 58.9},
			},
			Ladder: []*shimv1.Rung{{Name: "link", Ok: true}, {Name: "route", Ok: true, Repaired: true, Detail: "added again"}, {Name: "accepts", Detail: "refused"}},
		}
		s.Mended = []*shimv1.Rung{{Name: "gate", Ok: true, Repaired: true, Detail: "the gate is not in place", AtUnixMs: before(time.Hour)}}
		w.Copies = &daemonv1.Copies{
			LocalSequence: 7, DurableSequence: 6, DurableUnixMs: before(3 * time.Hour), LackingUnixMs: before(10 * time.Minute),
			Uploading: true, SentBytes: 3 << 20, Error: "put data/x in bucket b: store is unavailable", Name: "default/0f.1e",
		}
		s.Settings = []*shimv1.Setting{{Key: "mode", Value: "auto", Source: "default"}, {Key: "idle-timeout", Value: "5m", Source: "match[1]"}}
	})
	var out bytes.Buffer
	if err := printInspect(&out, w, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "inspect.txt", out.Bytes())
}

func TestWhyAwakeTexts(t *testing.T) {
	reason := []*shimv1.Reason{{Code: "traffic", Detail: "last traffic 12s ago; sleeps in 4m48s unless used"}}
	idle := &daemonv1.Idle{Mode: "auto", IdleForMs: 12_000, SleepsInMs: 288_000, TimeoutMs: 300_000}
	held := &daemonv1.Idle{Mode: "auto", SleepsInMs: -1, TimeoutMs: 300_000}
	var out bytes.Buffer
	for _, resp := range []*daemonv1.WhyAwakeResponse{
		{State: "asleep", Idle: held},
		{State: "awake", Idle: idle, Reasons: reason},
		{State: "awake", Idle: held, Reasons: []*shimv1.Reason{{Code: "exec", Detail: "1 exec is live"}}},
		{State: "awake", Idle: &daemonv1.Idle{Mode: "auto", IdleForMs: 300_000, TimeoutMs: 300_000}},
		{State: "awake", Reasons: []*shimv1.Reason{daemonReason(errNoDaemon)}},
	} {
		if err := printWhy(&out, "default/redis", resp); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	golden(t, "why.txt", out.Bytes())
}

func TestInspectTellsWhatAWakeWaitsFor(t *testing.T) {
	var out bytes.Buffer
	w := workload("nginx", "asleep", func(w *daemonv1.Workload) { w.WakeWaits = "its turn, as 2 wake at once" })
	if err := printFacts(&out, w, now); err != nil {
		t.Fatal(err)
	}
	wantText(t, out.String(), "Waits for:", "its turn, as 2 wake at once")
}

func TestStored(t *testing.T) {
	for _, tc := range []struct {
		copies *daemonv1.Copies
		want   string
	}{
		{nil, ""},
		{&daemonv1.Copies{}, "nothing"},
		{&daemonv1.Copies{LocalSequence: 2, DurableSequence: 2, DurableUnixMs: before(time.Minute)}, "sequence 2, uploaded 1m ago"},
		{&daemonv1.Copies{LocalSequence: 2, LackingUnixMs: before(time.Hour), Final: true, Error: "fenced"}, "nothing; 2 has been waiting for 1h; not tried again: fenced"},
	} {
		if got := stored(tc.copies, now); got != tc.want {
			t.Errorf("%v: %q, want %q", tc.copies, got, tc.want)
		}
	}
}

func TestSnapshotsTable(t *testing.T) {
	generation := func(sequence uint64, age time.Duration, sent uint64) *daemonv1.Generation {
		return &daemonv1.Generation{Sequence: sequence, Epoch: 1, CreatedUnixMs: before(age), ImageBytes: 24_222_000, SentBytes: sent, FetchBytes: 9_000_000}
	}
	pinned := generation(2, 50*time.Hour, 300_000)
	pinned.Pinned = true
	all := []*daemonv1.Lineage{
		{Name: "default/0a.1", Namespace: "default", Id: "redis", State: "running", Owner: "node-1", Generations: []*daemonv1.Generation{
			generation(7, time.Minute, 250_000), generation(6, time.Hour, 8_000_000), pinned,
		}},
		{Name: "default/0b.2", Namespace: "default", Id: "web", State: "running", Owner: "node-1", GoneUnixMs: before(3 * time.Hour),
			Generations: []*daemonv1.Generation{generation(1, 4*time.Hour, 8_000_000)}},
		{Name: "default/0c.3", State: "running", Owner: "node-2", Generations: []*daemonv1.Generation{generation(4, time.Hour, 8_000_000)}},
		{Name: "default/0d.4", Namespace: "default", Id: "fresh", State: "running", Owner: "node-1"},
		{Name: "default/0e.5", Error: "wrong key for the durable tier"},
		{Name: "default/0f.6", State: "deleted"},
	}
	var out bytes.Buffer
	if err := printSnapshots(&out, all, now); err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshots.txt", out.Bytes())
	out.Reset()
	if err := printAll(&out, "lineages", all[:1]); err != nil {
		t.Fatal(err)
	}
	golden(t, "snapshots.json", out.Bytes())
}

func TestCollectionsTable(t *testing.T) {
	all := []*daemonv1.Collection{
		{Name: "default/0a.1", Dropped: []uint64{4, 3}, DeletedObjects: 1002, DeletedBytes: 90_000_000, Objects: 1010, Deleted: []*daemonv1.Garbage{
			{Name: "p/1-4-ab-0", Bytes: 33_000_000, ModifiedUnixMs: before(3 * time.Hour)}, {Name: "l/ff", Bytes: 120, ModifiedUnixMs: before(26 * time.Hour)},
		}, Unknown: []string{"notes.txt"}},
		{Name: "default/0b.2", Objects: 3},
		{Name: "default/0c.3", Error: "wrong key for the durable tier"},
	}
	var out bytes.Buffer
	for _, dry := range []bool{true, false} {
		if err := printCollections(&out, all, dry, now); err != nil {
			t.Fatal(err)
		}
		out.WriteByte('\n')
	}
	golden(t, "snapshots-gc.txt", out.Bytes())
}

func TestVersionTellsOfTheStore(t *testing.T) {
	var out bytes.Buffer
	printStore(&out, nil)
	printStore(&out, &daemonv1.StoreCondition{Url: "s3://b/p", Fences: "yes", Condition: "fences"})
	printStore(&out, &daemonv1.StoreCondition{Url: "file:///d", Fences: "no", Condition: "does not fence: why", Waiting: 2, Stuck: 1, LagMs: 300_000, AheadMs: -5000})
	golden(t, "store.txt", out.Bytes())
}
