package conformance

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/cgroups/v3"
	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/anypb"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

const mebibyte = 1 << 20

// Limits that are changed, awake or asleep, are those of every sandbox that follows, in the same control group; of one
// that had limits from the start, and of one that had none.
func TestUpdate(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		for name, first := range map[string]int64{"from other limits": 300 * mebibyte, "from none": 0} {
			check(t, name, func(t *testing.T) {
				c := n.run(t, m, options{stdin: true, memory: first, args: []string{"sh", "-c", "read l; exec testserver -mib 600"}})
				group := c.group()
				used := c.used(t)
				cycle := func() {
					c.nap()
					used = c.wantMore(used)
					c.rise()
					used = c.wantMore(used)
					if now := c.group(); now != group {
						t.Fatalf("the control group is another: %v, was %v", now, group)
					}
				}
				cycle()
				c.nap()
				c.update(&specs.LinuxResources{
					Memory: &specs.LinuxMemory{Limit: ptr[int64](160 * mebibyte)},
					CPU:    &specs.LinuxCPU{Quota: ptr[int64](50_000), Period: ptr[uint64](100_000), Shares: ptr[uint64](512)},
					Pids:   &specs.LinuxPids{Limit: ptr[int64](500)},
				})
				c.rise()
				for range 2 {
					cycle()
					c.wantLimits("167772160", "50000 100000", "500")
				}
				c.throttled()
				c.say("go\n") // takes more than the new limit
				c.wantExit("", 137)
				c.delete("")
				c.shutdown()
				if got := c.n.events.topics(c.id); !slices.Contains(got, "oom") {
					t.Fatalf("events %v tell nothing of memory", got)
				}
			})
		}
	})
}

// What can't be is refused, and changes nothing.
func TestUpdateRefused(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		c := n.run(t, m, options{args: sleeper, memory: 300 * mebibyte})
		c.nap()
		for name, r := range map[string]*anypb.Any{
			"nothing":      nil,
			"another type": {TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: []byte(`{}`)},
			"no JSON":      {TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: []byte(`{`)},
		} {
			check(t, name, func(t *testing.T) {
				if _, err := c.task.Update(c.ctx(), &taskapi.UpdateTaskRequest{ID: c.id, Resources: r}); err == nil {
					t.Error("it is accepted")
				}
				c.wantMemory("314572800")
			})
		}
		c.end()
	})
}

// A control group is where its name says, in whatever words: a path, one relative to the root, systemd's. The sandbox is
// in it, with its limits, and after sleep in the same one.
func TestGroupNames(t *testing.T) {
	n := newNode(t, nil)
	slice := strings.ToLower(n.Name) + ".slice"
	for name, group := range map[string][2]string{
		"relative":   {n.Name + "/relative", n.Name + "/relative"},
		"systemd's":  {slice + ":cri:scope", slice + "/cri-scope.scope"},
		"of another": {"/" + n.Name + "/mine", n.Name + "/mine"},
	} {
		check(t, name, func(t *testing.T) {
			o := options{args: sleeper, memory: 300 * mebibyte, group: group[0]}
			if name == "of another" { // an annotation is no way out of one's limits
				o.foreign = map[string]string{"dev.gvisor.spec.cgroup-parent": "/" + n.Name + "/theirs"}
			}
			c := n.run(t, mood{"asleep", true}, o)
			for range 2 {
				s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
				if err != nil {
					t.Fatal(err)
				}
				c.inside(s.GetSandboxPid(), "/"+group[1])
				c.nap()
				c.rise()
			}
			c.end()
		})
	}
}

// inside looks that a process is in a control group, in each hierarchy that is used.
func (c *container) inside(pid uint32, group string) {
	c.t.Helper()
	data, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(int(pid)), "cgroup"))
	if err != nil {
		c.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if parts[1] == "" && cgroups.Mode() != cgroups.Unified {
			continue
		}
		if parts[2] != group {
			c.t.Errorf("the sandbox is in %s, want %s", line, group)
		}
	}
}

func ptr[T any](v T) *T { return &v }

func (c *container) update(r *specs.LinuxResources) {
	c.t.Helper()
	value, err := json.Marshal(r)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = c.task.Update(c.ctx(), &taskapi.UpdateTaskRequest{ID: c.id, Resources: &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: value}})
	if err != nil {
		c.t.Fatalf("Update: %v", err)
	}
}

// dir is the container's control group in a hierarchy, which only v1 has several of.
func (c *container) dir(controller string) string {
	if cgroups.Mode() == cgroups.Unified {
		controller = ""
	}
	return filepath.Join("/sys/fs/cgroup", controller, c.n.Name, c.id)
}

// group is what identifies the control group while it lives.
func (c *container) group() uint64 {
	c.t.Helper()
	info, err := os.Stat(c.dir("memory"))
	if err != nil {
		c.t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Ino
}

// file is a file of the control group, by its names on v1, with the controller before it, and on v2.
func (c *container) file(v1, v2 string) string {
	c.t.Helper()
	controller, _, _ := strings.Cut(v1, ".")
	name := v1
	if cgroups.Mode() == cgroups.Unified {
		name = v2
	}
	text, err := os.ReadFile(filepath.Join(c.dir(controller), name))
	if err != nil {
		c.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

func (c *container) wantMemory(want string) {
	c.t.Helper()
	if got := c.file("memory.limit_in_bytes", "memory.max"); got != want {
		c.t.Errorf("memory limit %s, want %s", got, want)
	}
}

// wantLimits looks at the kernel's side and at what Stats tells.
func (c *container) wantLimits(memory, cpu, pids string) {
	c.t.Helper()
	c.wantMemory(memory)
	quota := c.file("cpu.cfs_quota_us", "cpu.max")
	if cgroups.Mode() != cgroups.Unified {
		quota += " " + c.file("cpu.cfs_period_us", "")
	}
	if quota != cpu {
		c.t.Errorf("CPU limit %s, want %s", quota, cpu)
	}
	if got := c.file("pids.max", "pids.max"); got != pids {
		c.t.Errorf("limit of processes %s, want %s", got, pids)
	}
	var told uint64
	switch s := c.stats().(type) {
	case *stats1.Metrics:
		told = s.GetMemory().GetUsage().GetLimit()
	case *stats2.Metrics:
		told = s.GetMemory().GetUsageLimit()
	}
	if strconv.FormatUint(told, 10) != memory {
		c.t.Errorf("Stats tells of a limit of %d", told)
	}
}

// stats are of the type that containerd expects on this host.
func (c *container) stats() any {
	c.t.Helper()
	r, err := c.task.Stats(c.ctx(), &taskapi.StatsRequest{ID: c.id})
	if err != nil {
		c.t.Fatalf("Stats: %v", err)
	}
	v, err := typeurl.UnmarshalAny(r.GetStats())
	if err != nil {
		c.t.Fatal(err)
	}
	if _, v2 := v.(*stats2.Metrics); v2 != (cgroups.Mode() == cgroups.Unified) {
		c.t.Fatalf("Stats are a %T, and the host's mode is %v", v, cgroups.Mode())
	}
	return v
}

// used is the CPU time that Stats tells, in ns.
func (c *container) used(t *testing.T) uint64 {
	t.Helper()
	switch s := c.stats().(type) {
	case *stats1.Metrics:
		return s.GetCPU().GetUsage().GetTotal()
	case *stats2.Metrics:
		return s.GetCPU().GetUsageUsec() * 1000
	}
	t.Fatal("no CPU time")
	return 0
}

// wantMore returns the CPU time now, which must be no less than it was, and some.
func (c *container) wantMore(before uint64) uint64 {
	c.t.Helper()
	now := c.used(c.t)
	if now < before || now == 0 {
		c.t.Errorf("CPU time was %d, now %d", before, now)
	}
	return now
}

// throttled has the container take all the CPU it gets, and looks whether that was cut.
func (c *container) throttled() {
	c.t.Helper()
	before := c.file("cpu.stat", "cpu.stat")
	// Several, until it is: on a busy machine one doesn't get what it is allowed.
	p := c.exec(execOptions{args: []string{"sh", "-c", "for i in 1 2 3 4; do while :; do :; done & done; wait"}})
	p.run()
	eventually(c.t, "a busy container to be throttled", func() bool {
		return number(before, "nr_throttled") < number(c.file("cpu.stat", "cpu.stat"), "nr_throttled")
	})
	if _, err := c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, ExecID: p.exec, Signal: uint32(syscall.SIGKILL)}); err != nil {
		c.t.Fatalf("kill of the busy exec: %v", err)
	}
	p.wantExit(137)
}

// number finds a number in lines of "name number".
func number(text, name string) int {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			n, _ := strconv.Atoi(strings.TrimSpace(value))
			return n
		}
	}
	return -1
}
