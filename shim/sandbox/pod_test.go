package sandbox

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// pod is bare with members that run, in that order.
func pod(t *testing.T, names ...string) *Workload {
	t.Helper()
	w := bare()
	w.opts.Publish = func(string, any) {}
	for _, name := range names {
		relay, err := stdio.Open(t.Context(), stdio.Config{})
		if err != nil {
			t.Fatal(err)
		}
		c := &Container{
			ID: name, state: lifecycle.Running, execs: map[string]*Exec{}, ended: make(chan struct{}), relay: relay,
			member: &member{name: name, spec: &specs.Spec{Process: &specs.Process{}}, inside: true, left: make(chan struct{})},
		}
		w.containers, w.joined = append(w.containers, c), append(w.joined, c)
	}
	return w
}

func TestMembersKeepAPodAwake(t *testing.T) {
	for name, c := range map[string]struct {
		change func(w *Workload, member *Container)
		want   string
	}{
		"nothing":           {func(*Workload, *Container) {}, ""},
		"created":           {func(_ *Workload, c *Container) { c.state, c.member.inside, c.Terminal = lifecycle.Created, false, true }, ""},
		"terminal":          {func(_ *Workload, c *Container) { c.Terminal = true }, "terminal"},
		"paused":            {func(_ *Workload, c *Container) { c.state = lifecycle.Paused }, "paused"},
		"exec":              {func(_ *Workload, c *Container) { c.execs["e"] = &Exec{started: true, since: time.Now()} }, "exec"},
		"starts, or leaves": {func(w *Workload, _ *Container) { w.changing = 1 }, "containers"},
		"net-admin": {func(_ *Workload, c *Container) {
			c.member.spec.Process.Capabilities = &specs.LinuxCapabilities{Effective: []string{"CAP_NET_ADMIN"}}
		}, "net-admin"},
	} {
		w := pod(t, "a", "b")
		c.change(w, w.containers[2])
		if got := codes(w.blockers(true)); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
	if passing(reason("containers", "")) {
		t.Error("an urgent hibernation cuts into a start")
	}
}

// Whoever is killed asleep is ended at once, and is in the snapshot still.
func TestKilledAsleepIsAGhost(t *testing.T) {
	w := pod(t, "a", "b")
	w.state = lifecycle.Asleep
	if err := w.Kill(t.Context(), "a", "", syscall.SIGKILL, true); err != nil {
		t.Fatal(err)
	}
	p, err := w.Process("a", "")
	if err != nil || p.State != lifecycle.Stopped || p.Exit.Status != killedStatus {
		t.Fatalf("%+v, %v", p, err)
	}
	if w.state != lifecycle.Asleep || len(w.inside()) != 2 {
		t.Errorf("the pod is %s, and %d containers are in its snapshot", w.state, len(w.inside()))
	}
	if p, err := w.Process("b", ""); err != nil || p.State != lifecycle.Running {
		t.Errorf("the other is %+v, %v", p, err)
	}
	if err := w.Kill(t.Context(), "a", "", syscall.SIGTERM, false); !errors.Is(err, ErrNotFound) {
		t.Errorf("a signal to one that has ended: %v", err)
	}
}

// on-stop = exit ends one of a sleeper's containers, and the others sleep on.
func TestStopOfOneAsleep(t *testing.T) {
	w := pod(t, "a", "b")
	w.state, w.config.OnStop = lifecycle.Asleep, config.StopExit
	if err := w.Kill(t.Context(), "b", "", syscall.SIGTERM, false); err != nil {
		t.Fatal(err)
	}
	if p, _ := w.Process("b", ""); p.Exit.Status != 143 || w.state != lifecycle.Asleep || w.root().state != lifecycle.Running {
		t.Errorf("%+v, the pod %s, its root %s", p, w.state, w.root().state)
	}
}

// on-stop = hibernate ends one of a pod that sleeps with status 0; with the last one nothing wakes it any more.
func TestStopsOfAllAsleep(t *testing.T) {
	w := pod(t, "a", "b")
	w.state, w.config.OnStop = lifecycle.Asleep, config.StopHibernate
	for _, c := range []struct {
		id   string
		last bool
	}{{"a", false}, {"b", true}} {
		if err := w.Kill(t.Context(), c.id, "", syscall.SIGTERM, false); err != nil {
			t.Fatal(err)
		}
		if p, _ := w.Process(c.id, ""); p.State != lifecycle.Stopped || p.Exit.Status != 0 || w.stopping != c.last {
			t.Errorf("%s: %+v; nothing wakes it: %v", c.id, p, w.stopping)
		}
	}
}

func TestContainersThatCannotJoin(t *testing.T) {
	w := pod(t, "a")
	add := func(id string) error {
		return w.enlist(t.Context(), &Container{ID: id, member: &member{name: "a"}}, CreateRequest{}, &undo.Stack{})
	}
	if err := add("a"); !errors.Is(err, ErrExists) {
		t.Errorf("the same id again: %v", err)
	}
	if err := add("a2"); err != nil || w.containers[2].member.name != "a-a2" {
		t.Errorf("one of the same name: %v, named %q", err, w.containers[2].member.name)
	}
	w.root().state = lifecycle.Stopped
	if err := add("late"); !errors.Is(err, ErrPrecondition) {
		t.Errorf("in a sandbox that has ended: %v", err)
	}
	w.root().state = lifecycle.Paused
	if err := w.StartContainer(t.Context(), "a2"); !errors.Is(err, ErrPaused) {
		t.Errorf("started in a paused one: %v", err)
	}
}

func TestSnapshotOfOtherContainers(t *testing.T) {
	w := pod(t, "a", "b")
	manifest := func(names ...string) (m snapshot.Manifest) {
		for _, n := range names {
			m.Containers = append(m.Containers, snapshot.Container{Name: n})
		}
		return m
	}
	if err := w.sameMembers(manifest("root", "a", "b")); err != nil {
		t.Error(err)
	}
	for _, other := range [][]string{{"root"}, {"root", "a"}, {"root", "b", "a"}, {"root", "a", "b", "c"}} {
		if err := w.sameMembers(manifest(other...)); !errors.Is(err, runsc.ErrSpec) || !strings.Contains(err.Error(), "b") {
			t.Errorf("%q: %v", other, err)
		}
	}
}

// What was used is shared out as the sandbox says, whose account begins anew with a wake; nobody's ever falls.
func TestProcessorTimeIsSharedOut(t *testing.T) {
	w := pod(t, "a", "b")
	all := w.containers[1:]
	told := func() []time.Duration { return []time.Duration{all[0].member.use.cpu, all[1].member.use.cpu} }
	for i, c := range []struct {
		told map[string]uint64
		used time.Duration
		want []time.Duration
	}{
		{map[string]uint64{"a": 30, "b": 10}, 8 * time.Second, []time.Duration{6 * time.Second, 2 * time.Second}},
		{map[string]uint64{"a": 30, "b": 20}, time.Second, []time.Duration{6 * time.Second, 3 * time.Second}},
		{map[string]uint64{"a": 5, "b": 5}, 2 * time.Second, []time.Duration{7 * time.Second, 4 * time.Second}},
		{nil, 2 * time.Second, []time.Duration{8 * time.Second, 5 * time.Second}},
	} {
		shareOut(all, c.told, c.used)
		if got := told(); !slices.Equal(got, c.want) {
			t.Errorf("reading %d: %v, want %v", i, got, c.want)
		}
	}
}

func TestPidsAreSharedWithTheRoot(t *testing.T) {
	spec := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace, Path: "/proc/7/ns/pid"}, {Type: specs.MountNamespace}}}}
	joinPids(spec)
	own := &specs.Spec{Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}}}}
	joinPids(own)
	if len(spec.Linux.Namespaces) != 1 || len(own.Linux.Namespaces) != 1 {
		t.Errorf("shared: %v, its own: %v", spec.Linux.Namespaces, own.Linux.Namespaces)
	}
}

// A ghost's root file system has another upper directory over the same layers, and each of its mounts something of its kind.
func TestWhatAGhostNeeds(t *testing.T) {
	got := ghostOptions([]string{"index=off", "lowerdir=/l2:/l1", "upperdir=/gone", "workdir=/gone-too"}, "/u", "/w")
	if want := []string{"index=off", "lowerdir=/l2:/l1", "upperdir=/u", "workdir=/w"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	dir := t.TempDir()
	file, directory := filepath.Join(dir, "file"), filepath.Join(dir, "directory")
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Mkdir(directory, 0o700), os.Mkdir(filepath.Join(dir, "member"), 0o700)); err != nil {
		t.Fatal(err)
	}
	m := &member{dir: filepath.Join(dir, "member"), spec: &specs.Spec{Mounts: []specs.Mount{
		{Destination: "/f", Type: "bind", Source: file}, {Destination: "/d", Type: "bind", Source: directory}, {Destination: "/proc", Type: "proc", Source: "proc"},
	}}}
	m.files = isFileSource(m.spec)
	if want := map[string]bool{file: true, directory: false}; !maps.Equal(m.files, want) {
		t.Fatalf("%v, want %v", m.files, want)
	}
	if err := errors.Join(os.Remove(file), os.Remove(directory), m.mend()); err != nil {
		t.Fatal(err)
	}
	f, err := os.Stat(filepath.Join(m.dir, "mount-0"))
	d, e := os.Stat(filepath.Join(m.dir, "mount-1"))
	if err != nil || e != nil || f.IsDir() || !d.IsDir() {
		t.Errorf("the file is %v (%v), the directory %v (%v)", f, err, d, e)
	}
	if text, err := os.ReadFile(filepath.Join(m.dir, "config.json")); err != nil || !strings.Contains(string(text), "mount-1") || strings.Contains(string(text), "mount-2") {
		t.Errorf("the specification is %s, %v", text, err)
	}
}

// A member's clean-up leaves all to a shim that lives.
func TestCleanUpOfAMemberWhoseShimLives(t *testing.T) {
	bundle := t.TempDir()
	dir := filepath.Join(bundle, "member")
	s := stateFile{ID: "c", Shim: identify(os.Getpid()), Member: &memberFile{Sandbox: "s", Root: filepath.Join(bundle, "none"), Dir: dir}}
	if err := errors.Join(os.MkdirAll(filepath.Join(bundle, "hibernate"), 0o700), os.Mkdir(dir, 0o700), writeJSON(places{bundle}.state(), s)); err != nil {
		t.Fatal(err)
	}
	if _, err := Cleanup(t.Context(), bundle, runsc.ExecRunner{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("the member's files are gone: %v", err)
	}
	s.Shim.Start++ // another process, which is gone
	if err := writeJSON(places{bundle}.state(), s); err != nil {
		t.Fatal(err)
	}
	if _, err := Cleanup(t.Context(), bundle, runsc.ExecRunner{}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the member's files are there: %v", err)
	}
}

// A pod that is made anew wakes with the last of the containers that sleep, in the snapshot's order, and by nothing else; one that the snapshot has not ends the waiting.
func TestAPodGathers(t *testing.T) {
	w := pod(t, "b", "a", "c")
	w.state, w.joined = lifecycle.Asleep, nil
	g := &gathering{taken: make([]*Container, 2), over: make(chan struct{})}
	for _, c := range w.containers[1:] {
		c.state, c.member.inside = lifecycle.Created, false
	}
	for _, name := range []string{"a", "b"} {
		digest, err := snapshot.SpecDigest(w.containers[1].member.spec)
		if err != nil {
			t.Fatal(err)
		}
		g.places = append(g.places, snapshot.Container{Name: name, SpecDigest: digest})
	}
	w.gathering = g
	if placed, err := w.takePlace(t.Context(), w.containers[1]); !placed || err != nil {
		t.Fatal(placed, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := w.Wake(ctx, byPacket, ""); !errors.Is(err, context.DeadlineExceeded) || w.state != lifecycle.Asleep {
		t.Errorf("a packet: %v, and the pod is %s", err, w.state)
	}
	if placed, err := w.takePlace(t.Context(), w.containers[3]); placed || err != nil || w.gathering != nil {
		t.Errorf("one that the snapshot has not: %v, %v", placed, err)
	}
	w.gathering, g.over, w.stopping = g, make(chan struct{}), true // no wake begins
	if placed, err := w.takePlace(t.Context(), w.containers[2]); !placed || !errors.Is(err, ErrKilled) {
		t.Errorf("the last: %v, %v", placed, err)
	}
	if in := w.inside(); len(in) != 2 || in[0].ID != "a" || in[1].ID != "b" {
		t.Errorf("the order is %v", in)
	}
}
