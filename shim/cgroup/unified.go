package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/containerd/cgroups/v3/cgroup2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

const unifiedRoot = "/sys/fs/cgroup"

// unified is the driver of v2 hosts.
type unified struct {
	path string
	root string // the mount; a field for tests
}

func newUnified(path string) *unified { return &unified{path: path, root: unifiedRoot} }

func (u *unified) dir() string { return filepath.Join(u.root, u.path) }

func (u *unified) dirs() []string { return []string{u.dir()} }

func (u *unified) limit(res *specs.LinuxResources) error {
	_, err := cgroup2.NewManager(u.root, u.path, toUnified(res))
	return err
}

func (u *unified) load() (*cgroup2.Manager, error) {
	if _, err := os.Lstat(u.dir()); err != nil {
		return nil, ErrGone
	}
	return cgroup2.Load(u.path, cgroup2.WithMountpoint(u.root))
}

func (u *unified) update(res *specs.LinuxResources) error {
	m, err := u.load()
	if err != nil {
		return err
	}
	return m.Update(toUnified(res))
}

func (u *unified) add(pid int) error {
	m, err := u.load()
	if err != nil {
		return err
	}
	return m.AddProc(uint64(pid))
}

func (u *unified) metrics() (any, error) {
	m, err := u.load()
	if err != nil {
		return nil, err
	}
	return m.Stat()
}

func (u *unified) cpu() (time.Duration, error) {
	usec, err := readField(filepath.Join(u.dir(), "cpu.stat"), "usage_usec")
	return time.Duration(usec) * time.Microsecond, err
}

func (u *unified) memory() (uint64, error) {
	usage, err := readUint(filepath.Join(u.dir(), "memory.current"))
	if err != nil {
		return 0, err
	}
	inactive, err := readField(filepath.Join(u.dir(), "memory.stat"), "inactive_file")
	return usage - min(usage, inactive), err
}

// spawn has the kernel clone into the group.
func (u *unified) spawn(cmd *exec.Cmd, start func() error) error {
	dir, err := os.Open(u.dir())
	if err != nil {
		return err
	}
	defer dir.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(dir.Fd())
	return start()
}

// toUnified translates the spec's v1 terms, and adds what names v2 files
// itself. A quota without a period has the kernel's default period, and a swap
// limit without a memory limit is left out, as it has no meaning in v2's terms.
func toUnified(res *specs.LinuxResources) *cgroup2.Resources {
	clean := *res
	if cpu := clean.CPU; cpu != nil && cpu.Quota != nil && cpu.Period == nil {
		period := uint64(100_000)
		withPeriod := *cpu
		withPeriod.Period = &period
		clean.CPU = &withPeriod
	}
	if mem := clean.Memory; mem != nil && mem.Swap != nil && (mem.Limit == nil || *mem.Swap < *mem.Limit) {
		withoutSwap := *mem
		withoutSwap.Swap = nil
		clean.Memory = &withoutSwap
	}
	return cgroup2.ToResources(&clean)
}
