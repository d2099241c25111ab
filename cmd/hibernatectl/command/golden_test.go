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
		workload("redis", "awake", func(w *daemonv1.Workload) { w.Status.ImageBytes = 24_222_000 }),
		workload("nginx", "asleep", func(w *daemonv1.Workload) {
			w.Status.ImageBytes, w.Status.MemoryBytes, w.Status.Ports = 1_100_000_000, 0, []uint32{80, 443}
			w.Idle.SleepsInMs = -1
		}),
		workload("0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", "awake", func(w *daemonv1.Workload) {
			w.Status.Namespace, w.Status.Ports, w.Status.Wakes = "k8s.io", nil, 0
			w.Status.Blockers = []*shimv1.Reason{{Code: "exec", Detail: "1 exec is live"}}
			w.Idle.SleepsInMs = -1
		}),
		workload("by-hand", "awake", func(w *daemonv1.Workload) { w.Idle.Mode, w.Idle.SleepsInMs = "manual", -1 }),
		workload("no-daemon", "awake", func(w *daemonv1.Workload) { w.Idle = nil }),
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
