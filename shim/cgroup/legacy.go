package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup1/stats"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// legacy is the driver of v1 and hybrid hosts.
type legacy struct {
	path  string
	roots map[cgroup1.Name]string // the group's directory in each hierarchy
	all   []cgroup1.Subsystem
}

func newLegacy(path string) (*legacy, error) {
	subsystems, err := cgroup1.Default()
	if err != nil {
		return nil, err
	}
	l := &legacy{path: path, roots: make(map[cgroup1.Name]string), all: subsystems}
	for _, s := range subsystems {
		if p, ok := s.(interface{ Path(string) string }); ok {
			l.roots[s.Name()] = p.Path(path)
		}
	}
	return l, nil
}

func (l *legacy) dirs() []string {
	var dirs []string
	for _, dir := range l.roots {
		dirs = append(dirs, dir)
	}
	return dirs
}

func (l *legacy) limit(res *specs.LinuxResources) error {
	_, err := cgroup1.New(cgroup1.StaticPath(l.path), res)
	return err
}

func (l *legacy) load() (cgroup1.Cgroup, error) {
	g, err := cgroup1.Load(cgroup1.StaticPath(l.path))
	if errors.Is(err, cgroup1.ErrCgroupDeleted) {
		return nil, ErrGone
	}
	return g, err
}

func (l *legacy) update(res *specs.LinuxResources) error {
	g, err := l.load()
	if err != nil {
		return err
	}
	for _, part := range l.inTurn(res) {
		if err := g.Update(part); err != nil {
			return err
		}
	}
	return nil
}

// inTurn splits an update of memory and of memory with swap, for the kernel
// takes no moment in which the second is the lower one: the one goes first that
// makes room.
func (l *legacy) inTurn(res *specs.LinuxResources) []*specs.LinuxResources {
	current, err := readUint(filepath.Join(l.roots[cgroup1.Memory], "memory.memsw.limit_in_bytes"))
	if err != nil || res.Memory == nil || res.Memory.Limit == nil { // or the kernel doesn't count swap
		return []*specs.LinuxResources{res}
	}
	swap := res.Memory.Swap
	if swap == nil && *res.Memory.Limit < 0 { // without a limit of memory there is none with swap
		swap = res.Memory.Limit
	}
	if swap == nil {
		return []*specs.LinuxResources{res}
	}
	second := &specs.LinuxResources{Memory: &specs.LinuxMemory{Swap: swap}}
	rest, memory := *res, *res.Memory
	memory.Swap, rest.Memory = nil, &memory
	if *swap < 0 || uint64(*swap) > current {
		return []*specs.LinuxResources{second, &rest}
	}
	return []*specs.LinuxResources{&rest, second}
}

func (l *legacy) add(pid int) error {
	g, err := l.load()
	if err != nil {
		return err
	}
	return g.AddProc(uint64(pid))
}

// metrics reads the hierarchies one after the other. The library would look for
// all of them again, and read each in a goroutine of its own.
func (l *legacy) metrics() (any, error) {
	if !slices.ContainsFunc(l.dirs(), exists) {
		return nil, ErrGone
	}
	m := &stats.Metrics{CPU: &stats.CPUStat{Throttling: &stats.Throttle{}, Usage: &stats.CPUUsage{}}}
	for _, s := range l.all {
		counted, ok := s.(interface {
			Stat(path string, into *stats.Metrics) error
		})
		if !ok {
			continue
		}
		if err := counted.Stat(l.path, m); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	return m, nil
}

func (l *legacy) cpu() (time.Duration, error) {
	n, err := readUint(filepath.Join(l.roots[cgroup1.Cpuacct], "cpuacct.usage"))
	return time.Duration(n), err
}

func (l *legacy) memory() (uint64, error) { return l.without("total_inactive_file") }

func (l *legacy) own() (uint64, error) { return l.without("total_inactive_file", "total_active_file") }

// without is all that is charged but for some fields of memory.stat.
func (l *legacy) without(fields ...string) (uint64, error) {
	dir := l.roots[cgroup1.Memory]
	usage, err := readUint(filepath.Join(dir, "memory.usage_in_bytes"))
	for _, name := range fields {
		if err != nil {
			return 0, err
		}
		var n uint64
		n, err = readField(filepath.Join(dir, "memory.stat"), name)
		usage -= min(usage, n)
	}
	return usage, err
}

// spawn lends the group a thread: a v1 hierarchy knows single threads, and a
// child begins where the thread is that forks it. Moving a thread itself,
// unlike moving a process, takes no lock that waits for all processors.
func (l *legacy) spawn(_ *exec.Cmd, start func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := threadGroups()
		if err == nil {
			err = l.enter(home)
		}
		if err == nil {
			err = start()
		}
		// A thread that cannot go home ends with this goroutine.
		if l.leave(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// enter moves the thread into the group, in the hierarchies that home has.
func (l *legacy) enter(home map[string]string) error {
	for name, dir := range l.roots {
		if _, ok := home[string(name)]; !ok {
			continue
		}
		if err := moveThread(dir); err != nil {
			return fmt.Errorf("enter control group: %w", err)
		}
	}
	return nil
}

// leave moves the thread back to where it was.
func (l *legacy) leave(home map[string]string) error {
	var errs []error
	for name, dir := range l.roots {
		if path, ok := home[string(name)]; ok {
			mount := strings.TrimSuffix(dir, l.path)
			errs = append(errs, moveThread(filepath.Join(mount, path)))
		}
	}
	return errors.Join(errs...)
}

// moveThread moves the calling thread: 0 stands for it.
func moveThread(dir string) error {
	return os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0)
}

// threadGroups reads the calling thread's path in each v1 hierarchy, by the
// names of the hierarchy's controllers.
func threadGroups() (map[string]string, error) {
	data, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return nil, err
	}
	groups := make(map[string]string)
	for line := range strings.Lines(string(data)) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 || parts[1] == "" { // the unified one of a hybrid host
			continue
		}
		for name := range strings.SplitSeq(parts[1], ",") {
			groups[strings.TrimPrefix(name, "name=")] = parts[2]
		}
	}
	return groups, nil
}

func exists(dir string) bool {
	_, err := os.Lstat(dir)
	return err == nil
}

func readUint(file string) (uint64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
}

// readField reads a number from a file of "name number" lines.
func readField(file, name string) (uint64, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	n, err := field(string(data), name)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

// field finds a number in lines of "name number".
func field(text, name string) (uint64, error) {
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strconv.ParseUint(strings.TrimSpace(value), 10, 64)
		}
	}
	return 0, fmt.Errorf("no %s", name)
}
