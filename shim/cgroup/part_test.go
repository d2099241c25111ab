package cgroup

import (
	"testing"

	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
)

// A part has the processor time that it is told, its share of the memory, and its own limit.
func TestPart(t *testing.T) {
	one := &stats1.Metrics{Memory: &stats1.MemoryStat{Usage: &stats1.MemoryEntry{Limit: 700}}}
	part1(one, &stats1.Metrics{
		CPU:    &stats1.CPUStat{Usage: &stats1.CPUUsage{Total: 100, User: 60, Kernel: 40}},
		Memory: &stats1.MemoryStat{TotalInactiveFile: 20, Usage: &stats1.MemoryEntry{Usage: 300, Limit: 900}},
	}, 50, 2)
	if u := one.CPU.Usage; u.Total != 50 || u.User != 30 || u.Kernel != 20 {
		t.Errorf("v1: %v", u)
	}
	if m := one.Memory; m.Usage.Usage != 150 || m.Usage.Limit != 700 || m.TotalInactiveFile != 10 {
		t.Errorf("v1: %v", m)
	}
	two := &stats2.Metrics{Memory: &stats2.MemoryStat{UsageLimit: 700}}
	part2(two, &stats2.Metrics{
		CPU:    &stats2.CPUStat{UsageUsec: 100, UserUsec: 60, SystemUsec: 40},
		Memory: &stats2.MemoryStat{Usage: 300, InactiveFile: 20, UsageLimit: 900},
	}, 50, 2)
	if c := two.CPU; c.UsageUsec != 50 || c.UserUsec != 30 || c.SystemUsec != 20 {
		t.Errorf("v2: %v", c)
	}
	if m := two.Memory; m.Usage != 150 || m.UsageLimit != 700 || m.InactiveFile != 10 {
		t.Errorf("v2: %v", m)
	}
}
