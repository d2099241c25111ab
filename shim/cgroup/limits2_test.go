package cgroup

import (
	"errors"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/cgroups/v3"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

// limited are the files of a v2 group that limits are written to, as the kernel
// makes them.
func limited() map[string]string {
	return map[string]string{
		"cpu.weight": "100", "cpu.idle": "0", "cpu.max": "max 100000", "cpu.max.burst": "0",
		"cpuset.cpus": "", "cpuset.mems": "",
		"memory.max": "max", "memory.low": "0", "memory.high": "max", "memory.swap.max": "max", "memory.oom.group": "0",
		"pids.max": "max", "io.max": "", "io.weight": "default 100", "hugetlb.2MB.max": "max",
	}
}

// Limits are written in v2's terms, and only those that are named.
func TestUnifiedLimits(t *testing.T) {
	n, u, w := ptr[int64], ptr[uint64], ptr[uint16]
	for name, c := range map[string]struct {
		given specs.LinuxResources
		had   map[string]string // what is not as the kernel makes it
		want  map[string]string // what is changed
	}{
		"nothing": {},
		"all that is common": {
			given: specs.LinuxResources{
				CPU: &specs.LinuxCPU{
					Shares: u(1024), Quota: n(150_000), Period: u(50_000), Burst: u(7), Idle: n(1), Cpus: "0-1", Mems: "0",
				},
				Memory: &specs.LinuxMemory{Limit: n(100), Swap: n(150), Reservation: n(50)},
				Pids:   &specs.LinuxPids{Limit: n(7)}, BlockIO: &specs.LinuxBlockIO{Weight: w(1000)},
				HugepageLimits: []specs.LinuxHugepageLimit{{Pagesize: "2MB", Limit: 4 << 20}},
			},
			want: map[string]string{
				"cpu.weight": "100", "cpu.max": "150000 50000", "cpu.max.burst": "7", "cpu.idle": "1", "cpuset.cpus": "0-1", "cpuset.mems": "0",
				"memory.max": "100", "memory.swap.max": "50", "memory.low": "50", "pids.max": "7", "io.weight": "10000",
				"hugetlb.2MB.max": "4194304",
			},
		},
		"no limits any more": {
			given: specs.LinuxResources{
				CPU: &specs.LinuxCPU{Quota: n(-1)}, Memory: &specs.LinuxMemory{Limit: n(-1), Reservation: n(-1)}, Pids: &specs.LinuxPids{Limit: n(-1)},
			},
			had: map[string]string{"cpu.max": "50000 100000", "memory.max": "100", "memory.swap.max": "0", "memory.low": "5", "pids.max": "7"},
			want: map[string]string{
				"cpu.max": "max", "memory.max": "max", "memory.swap.max": "max", "memory.low": "max", "pids.max": "max",
			},
		},
		"a quota alone keeps the period": { // the kernel does, when it is given one number
			given: specs.LinuxResources{CPU: &specs.LinuxCPU{Quota: n(50_000)}}, want: map[string]string{"cpu.max": "50000"},
		},
		"a period alone keeps the quota": {
			given: specs.LinuxResources{CPU: &specs.LinuxCPU{Period: u(20_000)}},
			had:   map[string]string{"cpu.max": "50000 100000"}, want: map[string]string{"cpu.max": "50000 20000"},
		},
		"no swap": {
			given: specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: n(100), Swap: n(100)}},
			want:  map[string]string{"memory.max": "100", "memory.swap.max": "0"},
		},
		"swap without end": {
			given: specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: n(100), Swap: n(-1)}},
			had:   map[string]string{"memory.swap.max": "0"}, want: map[string]string{"memory.max": "100", "memory.swap.max": "max"},
		},
		"swap beside the limit that is there": {
			given: specs.LinuxResources{Memory: &specs.LinuxMemory{Swap: n(150)}},
			had:   map[string]string{"memory.max": "100"}, want: map[string]string{"memory.max": "100", "memory.swap.max": "50"},
		},
		"swap has no meaning without a limit": {given: specs.LinuxResources{Memory: &specs.LinuxMemory{Swap: n(150)}}},
		"files by name come last": {
			given: specs.LinuxResources{
				Memory:  &specs.LinuxMemory{Limit: n(100)},
				Unified: map[string]string{"memory.max": "200", "memory.oom.group": "1", "memory.high": "150"},
			},
			want: map[string]string{"memory.max": "200", "memory.oom.group": "1", "memory.high": "150"},
		},
		"a share for BFQ": {
			given: specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{Weight: w(500)}},
			had:   map[string]string{"io.bfq.weight": "default 100"}, want: map[string]string{"io.bfq.weight": "500"},
		},
		"a limit of a disk": {
			given: specs.LinuxResources{BlockIO: &specs.LinuxBlockIO{ThrottleReadBpsDevice: []specs.LinuxThrottleDevice{disk(254, 0, 4096)}}},
			want:  map[string]string{"io.max": "254:0 rbps=4096"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			files := limited()
			maps.Copy(files, c.had)
			u := fixture(t, files)
			if err := (&Group{path: u.path, driver: u}).Update(&c.given); err != nil {
				t.Fatal(err)
			}
			maps.Copy(files, c.want)
			for name, want := range files {
				if got := u.read(name); got != want {
					t.Errorf("%s is %q, want %q", name, got, want)
				}
			}
			if entries, err := os.ReadDir(u.dir()); err != nil || len(entries) != len(files) {
				t.Errorf("%d files where the kernel has %d (%v)", len(entries), len(files), err)
			}
		})
	}
}

func disk(major, minor int64, rate uint64) specs.LinuxThrottleDevice {
	d := specs.LinuxThrottleDevice{Rate: rate}
	d.Major, d.Minor = major, minor
	return d
}

// What can't be had is told, with what is missing; what a kernel without swap has anyhow is no fault.
func TestUnifiedLimitsThatCannotBe(t *testing.T) {
	u := fixture(t, map[string]string{"memory.max": "max", "memory.low": "0"})
	g := &Group{path: u.path, driver: u}
	for _, swap := range []int64{-1, 100} {
		if err := g.Update(&specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](100), Swap: &swap}}); err != nil {
			t.Errorf("swap %d beside 100 where there is none: %v", swap, err)
		}
	}
	for name, res := range map[string]*specs.LinuxResources{
		"controller pids is not enabled": {Pids: &specs.LinuxPids{Limit: ptr[int64](7)}},
		"memory.swap.max":                {Memory: &specs.LinuxMemory{Limit: ptr[int64](100), Swap: ptr[int64](150)}},
		"is below that of memory":        {Memory: &specs.LinuxMemory{Limit: ptr[int64](100), Swap: ptr[int64](50)}},
		"is no file of a control group":  {Unified: map[string]string{"../c/memory.max": "1"}},
		"memory.none":                    {Unified: map[string]string{"memory.none": "1"}},
	} {
		if err := g.Update(res); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("want %q: %v", name, err)
		}
	}
	if err := (&unified{root: u.root, path: "/none"}).update(&specs.LinuxResources{}); !errors.Is(err, ErrGone) {
		t.Errorf("of no group: %v", err)
	}
}

// A group has all controllers of the host, whatever limits there are: each directory above gives them on.
func TestUnifiedControllers(t *testing.T) {
	u := &unified{root: t.TempDir(), path: "/a/b/c"}
	if err := os.MkdirAll(u.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for dir, controllers := range map[string]string{"": "cpu io memory pids\n", "a": "cpu memory\n", "a/b": "\n", "a/b/c": "cpu\n"} {
		write(t, filepath.Join(u.root, dir, "cgroup.controllers"), controllers)
		write(t, filepath.Join(u.root, dir, "cgroup.subtree_control"), "")
	}
	if err := u.limit(&specs.LinuxResources{}); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{"": "+cpu +io +memory +pids", "a": "+cpu +memory", "a/b": "", "a/b/c": ""} {
		data, err := os.ReadFile(filepath.Join(u.root, dir, "cgroup.subtree_control"))
		if err != nil || string(data) != want {
			t.Errorf("%q gives on %q, want %q (%v)", dir, data, want, err)
		}
	}
}

// The same with the kernel's own files, as far as a hybrid host has controllers left for its v2 hierarchy: one that can't
// be given on keeps no other from it.
func TestUnifiedControllersOfTheKernel(t *testing.T) {
	testroot.Require(t)
	top := unifiedRoot
	if cgroups.Mode() != cgroups.Unified {
		top = filepath.Join(unifiedRoot, "unified")
	}
	all, err := os.ReadFile(filepath.Join(top, "cgroup.controllers"))
	if err != nil || len(strings.Fields(string(all))) == 0 {
		t.Logf("all controllers of this host are v1's (%v)", err)
		return
	}
	u := &unified{root: top, path: "/hibernate-test-" + strings.ToLower(t.Name()) + "/c"}
	g := &Group{path: u.path, driver: u}
	missing := absent(u.dirs())
	if err := u.limit(&specs.LinuxResources{}); err != nil {
		t.Fatal(err)
	}
	g.mark(missing)
	t.Cleanup(func() {
		if err := g.Delete(); err != nil {
			t.Error(err)
		}
	})
	if got := u.read("cgroup.controllers"); got != strings.TrimSpace(string(all)) {
		t.Errorf("the group has %q, the host %q", got, all)
	}
	// A process inside keeps a directory from giving on what is charged by domains.
	inner := &unified{root: top, path: u.path + "/inner"}
	cmd := sleeper(t, func(cmd *exec.Cmd) error { return g.Spawn(cmd, cmd.Start) })
	if err := inner.limit(&specs.LinuxResources{}); err != nil {
		t.Error(err)
	}
	if err := os.Remove(inner.dir()); err != nil {
		t.Error(err)
	}
	_ = cmd.Process.Kill()
}
