package cgroup

import (
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/containerd/cgroups/v3"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// ErrGone is for a group that does not exist, or no longer.
var ErrGone = errors.New("control group does not exist")

// Group is the control group of one container. Its methods may be called from
// many goroutines.
type Group struct {
	path string // as in the hierarchies, e.g. /default/c1
	driver
	recent recent
}

// driver is what v1 and v2 do differently.
type driver interface {
	// dirs are the group's directories, absolute.
	dirs() []string
	// limit applies resources, creating what is missing.
	limit(res *specs.LinuxResources) error
	update(res *specs.LinuxResources) error
	add(pid int) error
	// spawn runs start so that the process it starts is born in the group.
	spawn(cmd *exec.Cmd, start func() error) error
	metrics() (any, error)
	cpu() (time.Duration, error)
	memory() (uint64, error)
	own() (uint64, error)
	kills() (uint64, error)
	watch() (counter, error) // of kills
}

// New creates the group named by linux.cgroupsPath, or joins it where it
// exists, and applies the limits. path may be systemd's slice:prefix:name; it is
// then taken for the directory that systemd would use.
func New(path string, res *specs.LinuxResources) (*Group, error) {
	g, err := open(path)
	if err != nil {
		return nil, err
	}
	missing := absent(g.dirs())
	if err := g.limit(Asked(res)); err != nil {
		return nil, errors.Join(fmt.Errorf("control group %s: %w", g.path, err), g.removeMade(missing))
	}
	g.mark(missing)
	return g, nil
}

// Load opens a group that New made, in this process or an earlier one. ErrGone
// when there is none.
func Load(path string) (*Group, error) {
	g, err := open(path)
	if err != nil {
		return nil, err
	}
	if len(absent(g.dirs())) == len(g.dirs()) {
		return nil, fmt.Errorf("%w: %s", ErrGone, g.path)
	}
	return g, nil
}

func open(path string) (*Group, error) {
	clean, err := cleanPath(path)
	if err != nil {
		return nil, err
	}
	var d driver
	if cgroups.Mode() == cgroups.Unified {
		d = newUnified(clean)
	} else if d, err = newLegacy(clean); err != nil {
		return nil, fmt.Errorf("control group %s: %w", clean, err)
	}
	return &Group{path: clean, driver: d}, nil
}

// Path is the group's name below the roots of the hierarchies.
func (g *Group) Path() string { return g.path }

// Add moves a process into the group. It may take the kernel some 10 ms on v1:
// use Spawn for what is on the path of a wake.
func (g *Group) Add(pid int) error {
	if err := g.add(pid); err != nil {
		return fmt.Errorf("add process %d to control group %s: %w", pid, g.path, err)
	}
	return nil
}

// Spawn calls start, which starts cmd in its own goroutine, so that the process
// is born in the group, with all its children: nothing has to be moved. cmd may
// be changed before the call.
func (g *Group) Spawn(cmd *exec.Cmd, start func() error) error { return g.spawn(cmd, start) }

// Update changes the limits that res names.
func (g *Group) Update(res *specs.LinuxResources) error {
	if res == nil {
		return nil
	}
	defer g.recent.stale()
	if err := g.update(Asked(res)); err != nil {
		return fmt.Errorf("update control group %s: %w", g.path, err)
	}
	return nil
}

// CPU is the time used by all processes that were ever in the group. It does
// not fall while the group lives. 0 when it cannot be read.
func (g *Group) CPU() time.Duration {
	d, _ := g.cpu()
	return d
}

// Own is the bytes charged to the group without any file's: what a checkpoint
// would write. 0 when it cannot be read.
func (g *Group) Own() uint64 {
	n, _ := g.own()
	return n
}

// Memory is the bytes charged to the group without those that the kernel would
// give back first (inactive file pages): the working set, as the kubelet counts
// it. 0 when it cannot be read.
func (g *Group) Memory() uint64 {
	n, _ := g.memory()
	return n
}
