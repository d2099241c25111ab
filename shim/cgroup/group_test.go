package cgroup

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

func ptr[T any](v T) *T { return &v }

// newGroup makes a group of a name that no other test has, and sees to it that
// nothing of it is left.
func newGroup(t *testing.T, res *specs.LinuxResources) *Group {
	t.Helper()
	testroot.Require(t)
	top := "/hibernate-test-" + strconv.Itoa(os.Getpid()) + "-" + t.Name()
	g, err := New(top+"/pod/c", res)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Delete(); err != nil {
			t.Error(err)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup/*" + top); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
		if left, _ := filepath.Glob("/sys/fs/cgroup" + top); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	})
	return g
}

func sleeper(t *testing.T, start func(*exec.Cmd) error) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "read never; exit 0")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := start(cmd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	return cmd
}

// groupsOf lists where a process is, without the hierarchy of a hybrid host
// that nobody uses.
func groupsOf(t *testing.T, pid int) []string {
	t.Helper()
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	var groups []string
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "0::") && cgroups.Mode() != cgroups.Unified {
			continue
		}
		_, path, _ := strings.Cut(strings.TrimSpace(line)[2:], ":")
		groups = append(groups, path)
	}
	return groups
}

func wantIn(t *testing.T, pid int, g *Group) {
	t.Helper()
	for _, path := range groupsOf(t, pid) {
		if path != g.Path() {
			t.Errorf("process is in %s, want %s", path, g.Path())
		}
	}
}

func TestAdd(t *testing.T) {
	g := newGroup(t, nil)
	cmd := sleeper(t, (*exec.Cmd).Start)
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	wantIn(t, cmd.Process.Pid, g)
}

// A spawned process is born in the group, and the caller stays where it was.
func TestSpawn(t *testing.T) {
	g := newGroup(t, nil)
	before := groupsOf(t, os.Getpid())
	for range 3 {
		cmd := sleeper(t, func(cmd *exec.Cmd) error {
			begin := time.Now()
			err := g.Spawn(cmd, cmd.Start)
			t.Logf("spawned in %v", time.Since(begin))
			return err
		})
		wantIn(t, cmd.Process.Pid, g)
	}
	after := groupsOf(t, os.Getpid())
	if strings.Join(before, " ") != strings.Join(after, " ") {
		t.Errorf("the test moved from %v to %v", before, after)
	}
	for _, dir := range g.dirs() {
		tasks, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil || strings.Contains("\n"+string(tasks), "\n"+strconv.Itoa(os.Getpid())+"\n") {
			t.Errorf("a thread of the test is still in %s (%v)", dir, err)
		}
	}
}

func TestSpawnFails(t *testing.T) {
	g := newGroup(t, nil)
	cmd := exec.Command("/none")
	if err := g.Spawn(cmd, cmd.Start); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("spawn of nothing: %v", err)
	}
}

func TestLimits(t *testing.T) {
	res := &specs.LinuxResources{
		Memory:  &specs.LinuxMemory{Limit: ptr[int64](64 << 20)},
		CPU:     &specs.LinuxCPU{Quota: ptr[int64](50_000), Period: ptr[uint64](100_000)},
		Pids:    &specs.LinuxPids{Limit: ptr[int64](100)},
		Devices: []specs.LinuxDeviceCgroup{{Allow: false, Access: "rwm"}},
	}
	g := newGroup(t, res)
	cmd := sleeper(t, func(cmd *exec.Cmd) error { return g.Spawn(cmd, cmd.Start) })
	if limit := memoryLimit(t, g); limit != 64<<20 {
		t.Errorf("limit is %d", limit)
	}
	if err := g.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](128 << 20)}}); err != nil {
		t.Fatal(err)
	}
	if limit := memoryLimit(t, g); limit != 128<<20 {
		t.Errorf("limit is %d after the update", limit)
	}
	if g.Memory() == 0 || g.CPU() == 0 {
		t.Errorf("memory %d, cpu %v of process %d", g.Memory(), g.CPU(), cmd.Process.Pid)
	}
	if l, ok := g.driver.(*legacy); ok {
		devices, err := os.ReadFile(filepath.Join(l.roots["devices"], "devices.list"))
		if err != nil || !strings.HasPrefix(string(devices), "a *:* rwm") {
			t.Errorf("devices %q, %v", devices, err)
		}
	}
}

func memoryLimit(t *testing.T, g *Group) uint64 {
	t.Helper()
	m, err := g.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	v, err := typeurl.UnmarshalAny(m)
	if err != nil {
		t.Fatal(err)
	}
	switch m := v.(type) {
	case *stats1.Metrics:
		return m.Memory.Usage.Limit
	case *stats2.Metrics:
		return m.Memory.UsageLimit
	}
	t.Fatalf("metrics are %T", v)
	return 0
}

// A group outlives its processes and the Group that made it; then only what was
// made is removed.
func TestLoadAndDelete(t *testing.T) {
	outer := newGroup(t, nil)
	inner, err := New(outer.Path()+"/inner", nil)
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := Load(inner.Path())
	if err != nil {
		t.Fatal(err)
	}
	joined, err := New(outer.Path(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := loaded.Delete(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(inner.Path()); !errors.Is(err, ErrGone) {
		t.Errorf("load after delete: %v", err)
	}
	for name, err := range map[string]error{
		"add":    inner.Add(os.Getpid()),
		"update": inner.Update(&specs.LinuxResources{}),
	} {
		if !errors.Is(err, ErrGone) {
			t.Errorf("%s after delete: %v", name, err)
		}
	}
	if len(absent(joined.dirs())) != 0 {
		t.Errorf("the outer group went with the inner: %v", absent(joined.dirs()))
	}
}

// What was there before is not removed.
func TestForeignStays(t *testing.T) {
	outer := newGroup(t, nil)
	for _, dir := range outer.dirs() {
		if err := os.Mkdir(dir+"/foreign", 0o755); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(dir + "/foreign")
	}
	joined, err := New(outer.Path()+"/foreign", nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := joined.Delete(); err != nil {
		t.Fatal(err)
	}
	if gone := absent(joined.dirs()); len(gone) != 0 {
		t.Errorf("removed %v", gone)
	}
}

func TestBusyGroupIsKept(t *testing.T) {
	g := newGroup(t, nil)
	cmd := sleeper(t, func(cmd *exec.Cmd) error { return g.Spawn(cmd, cmd.Start) })
	if err := g.Delete(); err == nil {
		t.Errorf("deleted a group with process %d in it", cmd.Process.Pid)
	}
}

func TestOOMScore(t *testing.T) {
	testroot.Require(t)
	cmd := sleeper(t, (*exec.Cmd).Start)
	if err := SetOOMScore(cmd.Process.Pid, 321); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/oom_score_adj")
	if err != nil || string(data) != "321\n" {
		t.Errorf("score %q, %v", data, err)
	}
	if err := SetOOMScore(1<<30, 0); err != nil {
		t.Errorf("no process: %v", err)
	}
	if err := SetOOMScore(cmd.Process.Pid, 5000); err == nil {
		t.Error("a score that is none was set")
	}
}

// Engines give a limit of memory and swap together with that of memory, and it
// must be no lower at any moment, up or down.
func TestMemoryAndSwap(t *testing.T) {
	limits := func(n int64) *specs.LinuxResources {
		return &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr(n), Swap: ptr(n)}}
	}
	g := newGroup(t, limits(64<<20))
	for _, n := range []int64{128 << 20, 32 << 20, 256 << 20} {
		if err := g.Update(limits(n)); err != nil {
			t.Fatal(err)
		}
		if got := memoryLimit(t, g); got != uint64(n) {
			t.Errorf("limit is %d, want %d", got, n)
		}
	}
	for _, none := range []*specs.LinuxMemory{
		{Limit: ptr[int64](-1), Swap: ptr[int64](-1)},
		{Limit: ptr[int64](-1)},
	} {
		if err := g.Update(&specs.LinuxResources{Memory: none}); err != nil {
			t.Errorf("no limit any more: %v", err)
		}
		if err := g.Update(limits(64 << 20)); err != nil {
			t.Errorf("a limit again: %v", err)
		}
	}
}
