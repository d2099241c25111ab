package verbs

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Pids, state and counters of a sleeper are those of a running task.
func testLooksRunning(t *testing.T, n *node) {
	s := n.serve(harness.Container{ID: "a"})
	s.get("/memory?mib=32")
	s.rest()
	before, err := n.Task(n.context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	last := uint64(0)
	for i := range 4 {
		asleep := i%2 == 1
		if asleep {
			n.sleep("a")
		} else {
			s.get("/memory/sha256")
			s.rest()
		}
		task, err := n.Task(n.context(), "a")
		if err != nil || task != before {
			t.Errorf("task is %v, was %v, %v", task, before, err)
		}
		ps := n.must("tasks", "ps", "a")
		if want := 2 + btoi(!asleep); len(strings.Split(strings.TrimSpace(ps), "\n")) != want || !strings.Contains(ps, fmt.Sprint(task.Pid)) {
			t.Errorf("asleep %t: processes, want %d lines:\n%s", asleep, want, ps)
		}
		cpu, memory := n.metrics("a")
		if cpu < last || cpu == 0 {
			t.Errorf("CPU time fell from %d to %d", last, cpu)
		}
		last = cpu
		if memory == 0 || memory > 512<<20 || asleep && memory > 64<<20 {
			t.Errorf("asleep %t: memory %d", asleep, memory)
		}
		if asleep {
			n.is("a", "asleep")
		}
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// metrics are what containerd tells of a task: CPU time in ns, memory in bytes.
func (n *node) metrics(id string) (cpu, memory uint64) {
	n.t.Helper()
	var m struct {
		CPU struct {
			Usage     struct{ Total uint64 }
			UsageUsec uint64 `json:"usage_usec"`
		}
		Memory struct {
			Usage json.RawMessage
		}
	}
	text := n.must("tasks", "metrics", "--format", "json", id)
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		n.t.Fatalf("%v in %s", err, text)
	}
	if cgroups.Mode() == cgroups.Unified {
		return 1000 * m.CPU.UsageUsec, number(n, m.Memory.Usage)
	}
	var usage struct{ Usage json.RawMessage }
	if err := json.Unmarshal(m.Memory.Usage, &usage); err != nil {
		n.t.Fatalf("%v in %s", err, text)
	}
	return m.CPU.Usage.Total, number(n, usage.Usage)
}

func number(n *node, raw json.RawMessage) uint64 {
	n.t.Helper()
	v, err := strconv.ParseUint(strings.Trim(string(raw), `"`), 10, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return v
}

// A user's pause is kept, tells itself and is never undone by sleep. One who sleeps is paused asleep.
func testPause(t *testing.T, n *node) {
	s := n.serve(harness.Container{ID: "a"})
	s.get("/counter")
	for i, asleep := range []bool{false, true} {
		s.rest()
		if asleep {
			n.sleep("a")
		}
		n.must("tasks", "pause", "a")
		if task, err := n.Task(n.context(), "a"); err != nil || task.State != "PAUSED" {
			t.Errorf("task %v, %v", task, err)
		}
		if _, err := n.Hibernate(n.context(), "a"); !asleep && (err == nil || !strings.Contains(err.Error(), "[paused]")) {
			t.Errorf("hibernation of a paused container: %v", err)
		}
		if asleep {
			n.is("a", "asleep")
		}
		if r := n.exec("", "a", "paused", "true"); r.code == 0 {
			t.Error("an exec in a paused container ran")
		}
		if r := n.ctr("", "tasks", "pause", "a"); r.code == 0 {
			t.Error("paused twice")
		}
		n.must("tasks", "resume", "a")
		if task, err := n.Task(n.context(), "a"); err != nil || task.State != "RUNNING" {
			t.Errorf("task %v, %v", task, err)
		}
		if r := n.ctr("", "tasks", "resume", "a"); r.code == 0 {
			t.Error("resumed twice")
		}
		if got := s.get("/counter"); got != fmt.Sprint(i+2) {
			t.Errorf("counter %s", got)
		}
	}
	n.must("tasks", "pause", "a")
	n.must("tasks", "kill", "--signal", "SIGKILL", "a")
	if err := n.WaitTask(n.context(), "a", "STOPPED"); err != nil {
		t.Errorf("a paused container was killed: %v", err)
	}
}

// The cgroup and its limits are the same through sleeps.
func testLimits(t *testing.T, n *node) {
	s := n.serve(harness.Container{ID: "a", Flags: []string{"--memory-limit", "268435456", "--cpus", "0.5"}})
	first := n.limits("a")
	for range 3 {
		s.rest()
		n.sleep("a")
		if now := n.limits("a"); now != first {
			t.Errorf("asleep: limits %s, were %s", now, first)
		}
		s.get("/counter")
		if now := n.limits("a"); now != first {
			t.Errorf("awake: limits %s, were %s", now, first)
		}
		n.sandboxIn("a")
	}
}

// controllers are the hierarchies' mount points that hold memory and CPU limits.
func controllers() (memory, cpu string) {
	if cgroups.Mode() == cgroups.Unified {
		return "/sys/fs/cgroup", "/sys/fs/cgroup"
	}
	return "/sys/fs/cgroup/memory", "/sys/fs/cgroup/cpu"
}

// limits are the container's cgroup and what it allows, as text.
func (n *node) limits(id string) string {
	n.t.Helper()
	memory, cpu := controllers()
	files := []string{memory + "/%s/memory.limit_in_bytes", cpu + "/%s/cpu.cfs_quota_us"}
	want := []string{"268435456", "50000"}
	if cgroups.Mode() == cgroups.Unified {
		files, want = []string{memory + "/%s/memory.max", cpu + "/%s/cpu.max"}, []string{"268435456", "50000 100000"}
	}
	var all []string
	for i, f := range files {
		path := fmt.Sprintf(f, n.Name+"/"+id)
		data, err := os.ReadFile(path)
		if err != nil {
			n.t.Fatal(err)
		}
		value := strings.TrimSpace(string(data))
		if value != want[i] {
			n.t.Errorf("%s is %s, want %s", path, value, want[i])
		}
		all = append(all, path+" "+value)
	}
	return strings.Join(all, "\n")
}

// sandboxIn checks that the sandbox of a container that is awake is in its cgroup.
func (n *node) sandboxIn(id string) {
	n.t.Helper()
	memory, _ := controllers()
	data, err := os.ReadFile(filepath.Join(memory, n.Name, id, "cgroup.procs"))
	if err != nil {
		n.t.Fatal(err)
	}
	s := n.status(id)
	for _, pid := range []uint32{s.GetHolderPid(), s.GetSandboxPid()} {
		if !strings.Contains("\n"+string(data), fmt.Sprintf("\n%d\n", pid)) {
			n.t.Errorf("process %d is not in the container's cgroup, which has %q", pid, data)
		}
	}
}

// The second container in a network namespace runs, and says why it doesn't sleep.
func testSharedNamespace(t *testing.T, n *node) {
	pod, err := n.NewPod(n.context(), "pod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.RemovePod(n.context(), pod); err != nil {
			t.Error(err)
		}
	})
	for _, id := range []string{"first", "second"} {
		c := shell(id, "while :; do sleep 1; done")
		c.NetNS = pod.Path
		n.detached(c)
	}
	n.sleep("first")
	_, err = n.Hibernate(n.context(), "second")
	if err == nil || !strings.Contains(err.Error(), "[namespace-shared]") || !strings.Contains(err.Error(), "first") {
		t.Errorf("hibernation of a second container: %v", err)
	}
	if r := n.exec("", "second", "x", "echo runs"); r.stdout != "runs\n" {
		t.Errorf("the second container doesn't run: %s", r.stderr)
	}
	n.is("first", "asleep")
}
