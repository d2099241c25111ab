package cgroup

import (
	"fmt"
	"time"

	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	stats2 "github.com/containerd/cgroups/v3/cgroup2/stats"
	"github.com/containerd/typeurl/v2"
)

// Part are the Metrics of a container whose processes run in another's group, of: cpu is what it has used, and of the group's memory
// it has one part in so many; in has its limits. gVisor runs all containers of a pod in one process.
func Part(in, of *Group, cpu time.Duration, parts uint64) (typeurl.Any, error) {
	whole, err := decode(of)
	if err != nil {
		return nil, err
	}
	own, err := decode(in)
	if err != nil {
		return nil, err
	}
	parts = max(parts, 1)
	switch own := own.(type) {
	case *stats1.Metrics:
		if whole, ok := whole.(*stats1.Metrics); ok {
			part1(own, whole, uint64(cpu), parts)
		}
	case *stats2.Metrics:
		if whole, ok := whole.(*stats2.Metrics); ok {
			part2(own, whole, uint64(cpu.Microseconds()), parts)
		}
	}
	return typeurl.MarshalAny(own)
}

func decode(g *Group) (any, error) {
	m, err := g.Metrics()
	if err != nil {
		return nil, err
	}
	v, err := typeurl.UnmarshalAny(m)
	if err != nil {
		return nil, fmt.Errorf("metrics of control group %s: %w", g.path, err)
	}
	return v, nil
}

func part1(own, whole *stats1.Metrics, cpu, parts uint64) {
	if own.CPU == nil {
		own.CPU = &stats1.CPUStat{Throttling: &stats1.Throttle{}}
	}
	own.CPU.Usage = &stats1.CPUUsage{Total: cpu}
	if u := whole.GetCPU().GetUsage(); u.GetTotal() > 0 {
		share := func(n uint64) uint64 { return uint64(float64(n) * float64(cpu) / float64(u.GetTotal())) }
		own.CPU.Usage.Kernel, own.CPU.Usage.User = share(u.GetKernel()), share(u.GetUser())
	}
	m := whole.GetMemory()
	if m == nil {
		return
	}
	limit := own.GetMemory().GetUsage().GetLimit()
	if own.Memory == nil {
		own.Memory = &stats1.MemoryStat{}
	}
	own.Memory.RSS, own.Memory.TotalRSS = m.RSS/parts, m.TotalRSS/parts
	own.Memory.Cache, own.Memory.TotalCache = m.Cache/parts, m.TotalCache/parts
	own.Memory.InactiveFile, own.Memory.TotalInactiveFile = m.InactiveFile/parts, m.TotalInactiveFile/parts
	own.Memory.ActiveFile, own.Memory.TotalActiveFile = m.ActiveFile/parts, m.TotalActiveFile/parts
	own.Memory.PgFault, own.Memory.PgMajFault = m.PgFault/parts, m.PgMajFault/parts
	own.Memory.TotalPgFault, own.Memory.TotalPgMajFault = m.TotalPgFault/parts, m.TotalPgMajFault/parts
	own.Memory.Usage = &stats1.MemoryEntry{Limit: limit, Usage: m.GetUsage().GetUsage() / parts, Max: m.GetUsage().GetMax() / parts}
}

func part2(own, whole *stats2.Metrics, cpu, parts uint64) {
	if own.CPU == nil {
		own.CPU = &stats2.CPUStat{}
	}
	own.CPU.UsageUsec = cpu
	if total := whole.GetCPU().GetUsageUsec(); total > 0 {
		share := func(n uint64) uint64 { return uint64(float64(n) * float64(cpu) / float64(total)) }
		own.CPU.UserUsec, own.CPU.SystemUsec = share(whole.CPU.UserUsec), share(whole.CPU.SystemUsec)
	}
	m := whole.GetMemory()
	if m == nil {
		return
	}
	limit := own.GetMemory().GetUsageLimit()
	own.Memory = &stats2.MemoryStat{
		Anon: m.Anon / parts, File: m.File / parts, InactiveFile: m.InactiveFile / parts, ActiveFile: m.ActiveFile / parts,
		InactiveAnon: m.InactiveAnon / parts, ActiveAnon: m.ActiveAnon / parts, KernelStack: m.KernelStack / parts, Slab: m.Slab / parts,
		Shmem: m.Shmem / parts, Pgfault: m.Pgfault / parts, Pgmajfault: m.Pgmajfault / parts, Usage: m.Usage / parts, UsageLimit: limit,
	}
}
