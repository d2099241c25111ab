package cgroup

import specs "github.com/opencontainers/runtime-spec/specs-go"

// Asked is what resources ask for: without the device list (see the package),
// and without the zeros that stand for "nothing asked". Engines send them
// (nerdctl those of the real-time scheduler with each container), runc passes
// them over, and the kernel refuses most. The result is never nil; res is not
// changed.
func Asked(res *specs.LinuxResources) *specs.LinuxResources {
	if res == nil {
		return &specs.LinuxResources{}
	}
	clean := *res
	clean.Devices = nil
	clean.CPU = changed(clean.CPU, func(c *specs.LinuxCPU) {
		drop(&c.Shares)
		drop(&c.Quota)
		drop(&c.Burst)
		drop(&c.Period)
		drop(&c.RealtimeRuntime)
		drop(&c.RealtimePeriod)
	})
	clean.Memory = changed(clean.Memory, func(m *specs.LinuxMemory) { // a swappiness of 0 is one
		drop(&m.Limit)
		drop(&m.Reservation)
		drop(&m.Swap)
		//lint:ignore SA1019 deprecated, and still applied where the kernel has it
		drop(&m.Kernel)
		drop(&m.KernelTCP)
	})
	clean.Pids = changed(clean.Pids, func(p *specs.LinuxPids) { drop(&p.Limit) })
	clean.BlockIO = changed(clean.BlockIO, func(b *specs.LinuxBlockIO) {
		drop(&b.Weight)
		drop(&b.LeafWeight)
	})
	return &clean
}

// changed is a changed copy; none of nothing.
func changed[T any](part *T, change func(*T)) *T {
	if part == nil {
		return nil
	}
	clean := *part
	change(&clean)
	return &clean
}

func drop[T int64 | uint64 | uint16](value **T) {
	if *value != nil && **value == 0 {
		*value = nil
	}
}
