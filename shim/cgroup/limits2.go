package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// setting is a value for one file of a v2 group.
type setting struct {
	file, value string
	// optional is one that a kernel without the file has anyhow.
	optional bool
}

const (
	unlimited = "max"
	swapMax   = "memory.swap.max"
)

// apply writes what the resources ask for, as runc translates it: the
// specification speaks v1's terms, but for Unified, which names files and goes
// last.
func (u *unified) apply(res *specs.LinuxResources) error {
	memory, err := u.memorySettings(res.Memory)
	if err != nil {
		return err
	}
	all := slices.Concat(u.cpuSettings(res.CPU), memory, pidsSettings(res.Pids), u.weightSettings(res.BlockIO))
	if err := u.write(all); err != nil {
		return err
	}
	if err := u.applyOthers(res); err != nil {
		return err
	}
	return u.write(unifiedSettings(res.Unified))
}

// applyOthers has the library write the limits of disks, huge pages and RDMA.
func (u *unified) applyOthers(res *specs.LinuxResources) error {
	others := specs.LinuxResources{HugepageLimits: res.HugepageLimits, Rdma: res.Rdma}
	if res.BlockIO != nil {
		io := *res.BlockIO
		io.Weight = nil
		others.BlockIO = &io
	}
	m, err := u.load()
	if err != nil {
		return err
	}
	return m.Update(cgroup2.ToResources(&others))
}

// write writes settings in their order. A file that isn't there is that of a
// controller which the group doesn't have.
func (u *unified) write(settings []setting) error {
	for _, s := range settings {
		if s.file != filepath.Base(s.file) || strings.HasPrefix(s.file, ".") {
			return fmt.Errorf("%q is no file of a control group", s.file)
		}
		err := writeFile(filepath.Join(u.dir(), s.file), s.value)
		switch {
		case s.optional && errors.Is(err, fs.ErrNotExist):
		case errors.Is(err, fs.ErrNotExist):
			controller, _, _ := strings.Cut(s.file, ".")
			return fmt.Errorf("%w: the kernel doesn't have it, or the controller %s is not enabled in %s; see cgroup.controllers there",
				err, controller, filepath.Dir(u.dir()))
		case err != nil:
			return fmt.Errorf("set it to %q: %w", s.value, err)
		}
	}
	return nil
}

// writeFile writes to a file of the kernel's, which is never made.
func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func (u *unified) cpuSettings(cpu *specs.LinuxCPU) []setting {
	if cpu == nil {
		return nil
	}
	var all []setting
	if cpu.Shares != nil {
		all = append(all, setting{file: "cpu.weight", value: decimal(cgroup2.ConvertCPUSharesToCgroupV2Value(*cpu.Shares))})
	}
	if cpu.Idle != nil {
		all = append(all, setting{file: "cpu.idle", value: decimal(*cpu.Idle)})
	}
	if cpu.Quota != nil || cpu.Period != nil {
		all = append(all, setting{file: "cpu.max", value: u.cpuMax(cpu)})
	}
	if cpu.Burst != nil {
		all = append(all, setting{file: "cpu.max.burst", value: decimal(*cpu.Burst)})
	}
	if cpu.Cpus != "" {
		all = append(all, setting{file: "cpuset.cpus", value: cpu.Cpus})
	}
	if cpu.Mems != "" {
		all = append(all, setting{file: "cpuset.mems", value: cpu.Mems})
	}
	return all
}

// cpuMax leaves the quota or the period as it is when the other one is given
// alone.
func (u *unified) cpuMax(cpu *specs.LinuxCPU) string {
	value := unlimited
	switch {
	case cpu.Quota != nil:
		value = limitOf(*cpu.Quota)
	default:
		if quota, _, ok := strings.Cut(u.read("cpu.max"), " "); ok {
			value = quota
		}
	}
	if cpu.Period != nil {
		value += " " + decimal(*cpu.Period)
	}
	return value
}

func (u *unified) memorySettings(memory *specs.LinuxMemory) ([]setting, error) {
	if memory == nil {
		return nil, nil
	}
	var all []setting
	if memory.Limit != nil {
		all = append(all, setting{file: "memory.max", value: limitOf(*memory.Limit)})
	}
	swap, err := u.swapMax(memory)
	if err != nil {
		return nil, err
	}
	if swap != "" {
		all = append(all, setting{file: swapMax, value: swap, optional: swap == "0" || swap == unlimited})
	}
	if memory.Reservation != nil {
		all = append(all, setting{file: "memory.low", value: limitOf(*memory.Reservation)})
	}
	return all, nil
}

// swapMax is what may be swapped: in v1's terms Swap is memory and swap
// together. It is empty where nothing is said of it, or what is said has no
// meaning without a limit of memory.
func (u *unified) swapMax(memory *specs.LinuxMemory) (string, error) {
	limit := memory.Limit
	if limit == nil {
		if n, err := strconv.ParseInt(u.read("memory.max"), 10, 64); err == nil {
			limit = &n
		}
	}
	switch {
	case memory.Swap == nil && limit != nil && *limit < 0: // without a limit of memory there is none with swap
		return unlimited, nil
	case memory.Swap == nil:
		return "", nil
	case *memory.Swap < 0:
		return unlimited, nil
	case limit == nil || *limit < 0:
		return "", nil
	case *memory.Swap < *limit:
		return "", fmt.Errorf("the limit of memory and swap together, %d, is below that of memory, %d", *memory.Swap, *limit)
	}
	return decimal(*memory.Swap - *limit), nil
}

func pidsSettings(pids *specs.LinuxPids) []setting {
	if pids == nil || pids.Limit == nil {
		return nil
	}
	return []setting{{file: "pids.max", value: limitOf(*pids.Limit)}}
}

// weightSettings give a share of the disks to the scheduler that is there: BFQ
// knows v1's weights, the kernel's own model those from 1 to 10,000.
func (u *unified) weightSettings(io *specs.LinuxBlockIO) []setting {
	if io == nil || io.Weight == nil {
		return nil
	}
	const bfq = "io.bfq.weight"
	if _, err := os.Lstat(filepath.Join(u.dir(), bfq)); err == nil {
		return []setting{{file: bfq, value: decimal(*io.Weight)}}
	}
	return []setting{{file: "io.weight", value: decimal(1 + (uint64(*io.Weight)-10)*9999/990)}}
}

// unifiedSettings are in the order of their names.
func unifiedSettings(files map[string]string) []setting {
	var all []setting
	for _, name := range slices.Sorted(maps.Keys(files)) {
		all = append(all, setting{file: name, value: files[name]})
	}
	return all
}

// read is the text of one of the group's files; empty when it can't be read.
func (u *unified) read(file string) string {
	data, _ := os.ReadFile(filepath.Join(u.dir(), file))
	return strings.TrimSpace(string(data))
}

// limitOf is a limit in v2's words: a negative one is none.
func limitOf(n int64) string {
	if n < 0 {
		return unlimited
	}
	return decimal(n)
}

func decimal[T int64 | uint64 | uint16](n T) string { return fmt.Sprint(n) }
