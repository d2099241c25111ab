package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
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
	if err := os.MkdirAll(u.dir(), 0o755); err != nil {
		return err
	}
	u.enable()
	return u.apply(res)
}

// enable has the group have all controllers that the host can give, whether or
// not there are limits: without them nothing is counted. Those of a directory
// are given to its children one by one when not all can be, as one of real-time
// processes can't. What is wanting is told by the limit that needs it.
func (u *unified) enable() {
	above := ""
	for _, name := range strings.Split(strings.Trim(u.path, "/"), "/") {
		dir := filepath.Join(u.root, above)
		above = filepath.Join(above, name)
		data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			continue
		}
		all := strings.Fields(string(data))
		control := filepath.Join(dir, "cgroup.subtree_control")
		if len(all) == 0 || writeFile(control, "+"+strings.Join(all, " +")) == nil {
			continue
		}
		for _, controller := range all {
			_ = writeFile(control, "+"+controller)
		}
	}
}

func (u *unified) load() (*cgroup2.Manager, error) {
	if _, err := os.Lstat(u.dir()); err != nil {
		return nil, ErrGone
	}
	return cgroup2.Load(u.path, cgroup2.WithMountpoint(u.root))
}

func (u *unified) update(res *specs.LinuxResources) error {
	if _, err := u.load(); err != nil {
		return err
	}
	return u.apply(res)
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

func (u *unified) memory() (uint64, error) { return u.without("inactive_file") }

func (u *unified) own() (uint64, error) { return u.without("inactive_file", "active_file") }

// without is all that is charged but for some fields of memory.stat.
func (u *unified) without(fields ...string) (uint64, error) {
	usage, err := readUint(filepath.Join(u.dir(), "memory.current"))
	for _, name := range fields {
		if err != nil {
			return 0, err
		}
		var n uint64
		n, err = readField(filepath.Join(u.dir(), "memory.stat"), name)
		usage -= min(usage, n)
	}
	return usage, err
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
