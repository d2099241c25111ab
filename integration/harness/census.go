package harness

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// A Census is all that a container could leave behind: by kind, one line for each thing.
//
//	process   the world's, without containerd and the daemon
//	mount     in the world's mount namespace
//	netns     pinned network namespaces
//	link, rule, route, nft   in the node's network namespace
//	address   reserved by host-local
//	cgroup    of the world's containers
//	file      sockets, records and state below /run and the run-dir; snapshots in the data-dir
//
// Empty directories that a first container makes and all later ones share don't count, nor what runsc pins once for
// its root. In the data-dir, a directory for each workload counts.
//
//	host      mounts, addresses, rules, routes and nft of the world outside it, where none belong
type Census map[string][]string

// Census counts now. Take one before, with the programs running, and compare with CheckLeaks.
func (w *World) Census(ctx context.Context) (Census, error) {
	c := Census{}
	for kind, count := range map[string]func(context.Context) ([]string, error){
		"process": w.countProcesses,
		"mount":   w.countMounts,
		"netns":   w.countNamespaces,
		"link":    w.countLinks,
		"rule":    w.lines("ip", "rule"),
		"route":   w.countRoutes,
		"nft":     w.lines("nft", "--stateless", "list", "ruleset"),
		"address": func(context.Context) ([]string, error) { return w.Reservations() },
		"cgroup":  w.countCgroups,
		"file":    w.countFiles,
		"host":    w.countHost,
	} {
		lines, err := count(ctx)
		if err != nil {
			return nil, fmt.Errorf("census of %s: %w", kind, err)
		}
		slices.Sort(lines)
		c[kind] = lines
	}
	return c, nil
}

// Since lists what is there and was not before, as "kind: thing".
func (c Census) Since(before Census) []string {
	var more []string
	for kind, lines := range c {
		had := map[string]int{}
		for _, l := range before[kind] {
			had[l]++
		}
		for _, l := range lines {
			if had[l]--; had[l] < 0 {
				more = append(more, kind+": "+l)
			}
		}
	}
	slices.Sort(more)
	return more
}

// ErrLeak is what CheckLeaks finds.
var ErrLeak = errors.New("left behind")

// CheckLeaks waits a little until nothing is there that was not before, and fails with the list otherwise.
func (w *World) CheckLeaks(ctx context.Context, before Census) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	var more []string
	err := poll(ctx, 100*time.Millisecond, func() (bool, error) {
		now, err := w.Census(context.WithoutCancel(ctx)) // each count has its own deadline
		if err != nil {
			return false, err
		}
		more = now.Since(before)
		return len(more) == 0, nil
	})
	if len(more) > 0 {
		return fmt.Errorf("%w:\n  %s", ErrLeak, strings.Join(more, "\n  "))
	}
	return err
}

func (w *World) countProcesses(context.Context) ([]string, error) {
	all, err := w.Processes()
	var out []string
	for _, p := range all {
		if p.Pid != w.Containerd.Pid() && p.Pid != w.Daemon.Pid() {
			out = append(out, fmt.Sprintf("%d %s", p.Pid, strings.Join(p.Argv, " ")))
		}
	}
	return out, err
}

func (w *World) countMounts(context.Context) ([]string, error) {
	all, err := mountPoints(w.anchor.pid())
	return slices.DeleteFunc(all, ofRunscRoot), err
}

// ofRunscRoot is about the empty network namespace that runsc pins for a root, for all its gofers.
func ofRunscRoot(path string) bool { return filepath.Base(path) == "null-netns" }

// mountPoints of the mount namespace that a process is in.
func mountPoints(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	var out []string
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 4 {
			out = append(out, f[4])
		}
	}
	return out, err
}

func (w *World) countNamespaces(context.Context) ([]string, error) {
	return walk(w.Path("/run/netns"), filepath.Join(w.Path(w.RunDir()), "netns"))
}

// countFiles leaves out logs, what is counted as namespaces, mount(8)'s own directory, and caches.
func (w *World) countFiles(context.Context) ([]string, error) {
	all, err := walk(w.Path("/run"), w.Path(w.RunDir()))
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(f string) bool {
		return strings.HasSuffix(f, ".log") || knownOfRunsc(f) || ofRunscRoot(f) ||
			strings.Contains(f, "/run/netns/") || strings.Contains(f, "/root/run/mount/")
	})
	workloads, err := filepath.Glob(filepath.Join(w.DataDir(), "*", "*"))
	workloads = slices.DeleteFunc(workloads, func(f string) bool { return filepath.Base(filepath.Dir(f)) == ".events" }) // the daemon's log
	return append(all, workloads...), err
}

// knownOfRunsc is about what the first shim of a node remembers of runsc for all others.
func knownOfRunsc(path string) bool {
	return slices.Contains([]string{".sha256", ".version", ".features"}, filepath.Ext(path))
}

func (w *World) countCgroups(context.Context) ([]string, error) {
	var out []string
	for _, pattern := range []string{"/sys/fs/cgroup/" + w.Name + "*", "/sys/fs/cgroup/*/" + w.Name + "*"} {
		tops, err := filepath.Glob(pattern)
		if err != nil {
			return nil, err
		}
		for _, top := range tops {
			err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
				if err == nil && d.IsDir() && d.Name() != w.Name {
					out = append(out, path)
				}
				return ignoreGone(err)
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return out, nil
}

// walk lists what is no directory below directories, which need not be there.
func walk(dirs ...string) ([]string, error) {
	var out []string
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() {
				out = append(out, path)
			}
			return ignoreGone(err)
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func ignoreGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func (w *World) lines(name string, args ...string) func(context.Context) ([]string, error) {
	return func(ctx context.Context) ([]string, error) {
		out, err := w.output(ctx, name, args...)
		return normalise(out), err
	}
}

// countLinks is by name alone: a bridge's address follows its ports.
func (w *World) countLinks(ctx context.Context) ([]string, error) {
	all, err := w.lines("ip", "-brief", "link")(ctx)
	for i, l := range all {
		name, _, _ := strings.Cut(l, " ")
		all[i], _, _ = strings.Cut(name, "@")
	}
	return all, err
}

// countRoutes leaves out what the kernel makes by itself, by and by, for a link that has come up.
func (w *World) countRoutes(ctx context.Context) ([]string, error) {
	all, err := w.lines("ip", "route", "show", "table", "all")(ctx)
	return slices.DeleteFunc(all, func(r string) bool { return strings.Contains(r, "proto kernel") }), err
}

// volatile is what changes in a listing without anything being made: counters, and a bridge's carrier.
var volatile = regexp.MustCompile(`counter packets \d+ bytes \d+|<[A-Z_,-]*>|\b(UP|DOWN|UNKNOWN|LOWERLAYERDOWN)\b|linkdown`)

func normalise(listing string) []string {
	var out []string
	for line := range strings.Lines(listing) {
		line = strings.Join(strings.Fields(volatile.ReplaceAllString(line, "")), " ")
		if line != "" {
			out = append(out, line)
		}
	}
	return out
}
