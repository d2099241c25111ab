package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// bare is a workload of one running container that owns nothing outside its memory.
func bare() *Workload {
	w := &Workload{
		opts:   Options{Namespace: "n", ID: "c", Now: time.Now, Log: slog.New(slog.DiscardHandler)},
		config: config.Default(), leases: map[string]time.Time{}, holder: &holder{process: process{Pid: 1}},
		spec:     &specs.Spec{Process: &specs.Process{}},
		watchers: watchers{all: map[chan *shimv1.Event]struct{}{}},
	}
	w.containers = []*Container{{ID: "c", state: lifecycle.Running, execs: map[string]*Exec{}, ended: make(chan struct{})}}
	return w
}

// tell writes to the standard input of a workload's container, which nobody reads.
func tell(t *testing.T, w *Workload) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stdin")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	came := make(chan struct{}, 1)
	relay, err := stdio.Open(t.Context(), stdio.Config{Stdin: path, OnInput: func() { came <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = relay.Finish(context.Background()) })
	if relay.Unread() {
		t.Error("it has something to read before it was told anything")
	}
	w.root().relay = relay
	if err := os.WriteFile(path, []byte("a word"), 0); err != nil {
		t.Fatal(err)
	}
	<-came
}

func codes(reasons []*shimv1.Reason) string {
	var all []string
	for _, r := range reasons {
		all = append(all, r.GetCode())
	}
	return strings.Join(all, " ")
}

func TestBlockers(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Workload)
		auto   string
		manual string
	}{
		"no network":      {func(*Workload) {}, "no-network", ""},
		"mode manual":     {func(w *Workload) { w.config.Mode = config.ModeManual }, "mode-manual no-network", ""},
		"a fixed reason":  {func(w *Workload) { w.fixedReason = reason("mesh", "") }, "mesh", "mesh"},
		"terminal":        {func(w *Workload) { w.root().Terminal = true }, "terminal no-network", "terminal"},
		"paused":          {func(w *Workload) { w.root().state = lifecycle.Paused }, "paused", "paused"},
		"created":         {func(w *Workload) { w.root().state = lifecycle.Created }, "not-started", "not-started"},
		"stopped":         {func(w *Workload) { w.root().state = lifecycle.Stopped }, "stopped", "stopped"},
		"just told":       {func(w *Workload) { tell(t, w); w.inputCame() }, "no-network input", "input"},
		"told before":     {func(w *Workload) { tell(t, w); w.lastInput = time.Now().Add(-inputTime) }, "no-network", ""},
		"busy":            {func(w *Workload) { w.busy = 1 }, "no-network busy", "busy"},
		"a live exec":     {func(w *Workload) { w.root().execs["e"] = &Exec{started: true, since: time.Now()} }, "no-network exec", "exec"},
		"a silent exec":   {func(w *Workload) { w.root().execs["e"] = &Exec{started: true, since: time.Now().Add(-time.Hour)} }, "no-network", ""},
		"an exec to come": {func(w *Workload) { w.root().execs["e"] = &Exec{} }, "no-network", ""},
		"an ended exec":   {func(w *Workload) { w.root().execs["e"] = &Exec{started: true, exit: &Exit{}} }, "no-network", ""},
		"a lease":         {func(w *Workload) { w.leases["l"] = time.Now().Add(time.Hour) }, "no-network lease", "lease"},
		"an expired lease": {func(w *Workload) { w.leases["l"] = time.Now().Add(-time.Second) },
			"no-network", ""},
		"net-admin": {func(w *Workload) {
			w.spec.Process.Capabilities = &specs.LinuxCapabilities{Effective: []string{"CAP_NET_ADMIN"}}
		}, "net-admin no-network", "net-admin"},
		"net-admin, allowed": {func(w *Workload) {
			w.spec.Process.Capabilities = &specs.LinuxCapabilities{Effective: []string{"CAP_NET_ADMIN"}}
			w.config.AllowNetAdmin = true
		}, "no-network", ""},
	} {
		w := bare()
		c.change(w)
		if got := codes(w.blockers(false)); got != c.auto {
			t.Errorf("%s: %q, want %q", name, got, c.auto)
		}
		if got := codes(w.blockers(true)); got != c.manual {
			t.Errorf("%s, by hand: %q, want %q", name, got, c.manual)
		}
	}
}

func TestLeasesAreLimitedAndEnd(t *testing.T) {
	w := bare()
	now := time.Unix(1e9, 0)
	w.opts.Now = func() time.Time { return now }
	w.Lease("b", time.Hour)
	leases := w.Lease("a", 48*time.Hour)
	if len(leases) != 2 || leases[0].GetName() != "a" || leases[0].GetExpiresUnixMs() != now.Add(maxLease).UnixMilli() {
		t.Fatalf("leases %v: want a for a day, then b", leases)
	}
	if leases = w.Lease("a", 0); len(leases) != 1 {
		t.Fatalf("an ended lease is there: %v", leases)
	}
	now = now.Add(time.Hour)
	if leases = w.Lease("none", 0); len(leases) != 0 {
		t.Fatalf("an expired lease is there: %v", leases)
	}
}

func TestWatchersLoseTheOldest(t *testing.T) {
	w := bare()
	c := make(chan *shimv1.Event, watchBacklog)
	w.watchers.all[c] = struct{}{}
	for i := range watchBacklog + 3 {
		w.announce(&shimv1.Transition{StartedUnixMs: int64(i)})
	}
	var got []int64
	for range watchBacklog {
		got = append(got, (<-c).GetTransition().GetStartedUnixMs())
	}
	if got[0] != 3 || got[len(got)-1] != watchBacklog+2 || !slices.IsSorted(got) {
		t.Fatalf("a slow watcher got %v", got)
	}
}

func TestStepsOfAnEndedTransitionAreNotTaken(t *testing.T) {
	var noted []string
	tr := newTransition("wake", "test", "", 0, time.Now, func(s string) { noted = append(noted, s) })
	tr.cancel(ErrKilled)
	err := tr.step("one", func(context.Context) error { t.Error("it was taken"); return nil })
	if !errors.Is(err, ErrKilled) {
		t.Fatalf("got %v, want the cause", err)
	}
	if err := tr.always("undo", func() error { return nil }); err != nil || !slices.Equal(noted, []string{"undo"}) {
		t.Fatalf("noted %v, %v", noted, err)
	}
}

func TestATransitionEndsAtItsDeadline(t *testing.T) {
	tr := newTransition("wake", "test", "", time.Millisecond, time.Now, func(string) {})
	<-tr.ctx.Done()
	if err := context.Cause(tr.ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("cause %v", err)
	}
}

func TestOnlyTheVeryProcessIsKilled(t *testing.T) {
	cmd := exec.Command("sleep", "60")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := identify(cmd.Process.Pid)
	if err := (process{Pid: p.Pid, Start: p.Start + 1}).kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := startTime(p.Pid); err != nil {
		t.Fatal("another process of that pid was killed")
	}
	if err := p.kill(); err != nil {
		t.Fatal(err)
	}
	err := cmd.Wait()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		t.Fatalf("it ended with %v", err)
	}
	if err := p.kill(); err != nil {
		t.Fatalf("one that is gone: %v", err)
	}
}

func TestHooksSeeTheStateAndFailLoudly(t *testing.T) {
	out := t.TempDir() + "/state"
	hooks := []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat >" + out}}}
	state := specs.State{ID: "c", Pid: 42, Status: specs.StateCreated}
	if err := runHooks(t.Context(), runsc.ExecRunner{}, hooks, state); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(out); err != nil || !strings.Contains(string(data), `"pid":42`) {
		t.Fatalf("the hook read %q, %v", data, err)
	}
	hooks[0].Args[2] = "echo no bridge >&2; exit 3"
	if err := runHooks(t.Context(), runsc.ExecRunner{}, hooks, state); err == nil || !strings.Contains(err.Error(), "no bridge") {
		t.Fatalf("a failing hook gives %v, without what it said", err)
	}
	one := 1
	hooks[0].Args[2], hooks[0].Timeout = "exec sleep 60", &one
	if err := runHooks(t.Context(), runsc.ExecRunner{}, hooks, state); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("a hanging hook gives %v", err)
	}
}

func TestSpecErrorsNameTheFile(t *testing.T) {
	dir := t.TempDir()
	for text, want := range map[string]string{"{": "not a runtime specification", "{}": "no process"} {
		if err := os.WriteFile(dir+"/config.json", []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readSpec(dir); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// runsc is left no other control group than the container's own, and no limit to write back.
func TestGroupIsSettled(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	given := &specs.LinuxMemory{Limit: n(100), Swap: n(200)}
	spec := &specs.Spec{
		Annotations: map[string]string{"dev.gvisor.spec.cgroup-parent": "/theirs", "dev.gvisor.spec.mount.a.type": "tmpfs"},
		Linux:       &specs.Linux{CgroupsPath: "a.slice:cri:c", Resources: &specs.LinuxResources{Memory: given}},
	}
	settleGroup(spec, "/a.slice/cri-c.scope")
	if len(spec.Annotations) != 1 || spec.Linux.CgroupsPath != "/a.slice/cri-c.scope" {
		t.Errorf("%v, %v", spec.Annotations, spec.Linux.CgroupsPath)
	}
	if memory := spec.Linux.Resources.Memory; memory.Swap != nil || *memory.Limit != 100 || *given.Swap != 200 {
		t.Errorf("memory %+v, given %+v", memory, given)
	}
	settleGroup(&specs.Spec{Linux: &specs.Linux{}}, "/c")
}
