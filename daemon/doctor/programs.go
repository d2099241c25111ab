package doctor

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/config"
)

// shimProgram is what containerd starts for io.containerd.hibernate.v1.
const shimProgram = "containerd-shim-hibernate-v1"

func configuration(_ context.Context, h *Host) Result {
	if h.ConfigErr != nil {
		return problem("hibernated doesn't start with it, and workloads don't either", "mend what it says in "+h.ConfigFile+"; docs/CONFIGURATION.md has all keys",
			"%s", strings.ReplaceAll(h.ConfigErr.Error(), "\n", "; "))
	}
	if !h.exists(h.ConfigFile) {
		return ok("%s is not there: all is as the defaults have it", h.ConfigFile)
	}
	return ok("%s", h.ConfigFile)
}

func programs(ctx context.Context, h *Host) Result {
	var found []string
	for _, name := range []string{shimProgram, h.Config.Helper} {
		path, err := h.Find(name)
		if err != nil {
			return problem("workloads don't start", "install the programs again, all into one directory (make install)", "%v", err)
		}
		found = append(found, path)
	}
	return ok("%s", strings.Join(found, ", "))
}

// runscVersion runs it.
func (h *Host) runscVersion(ctx context.Context) (path, version string, err error) {
	if path, err = h.Find(h.Config.Runsc); err != nil {
		return "", "", err
	}
	out, err := h.Exec(ctx, path, "--version")
	if err != nil {
		return path, "", err
	}
	line, _, _ := strings.Cut(out, "\n")
	version, is := strings.CutPrefix(line, "runsc version ")
	if !is {
		return path, "", fmt.Errorf("%s --version says %q: it is no runsc", path, line)
	}
	return path, version, nil
}

func runscProgram(ctx context.Context, h *Host) Result {
	path, version, err := h.runscVersion(ctx)
	if err != nil {
		return problem("workloads neither start nor wake", "install gVisor's runsc, or set the key runsc to where it is", "%v", err)
	}
	digest, err := digest(path)
	if err != nil {
		return untold(err)
	}
	if strings.Contains(version, "MISSING") || version == "" {
		return warning("a snapshot's version can't be told from another's", "install a release of runsc, or a build that is stamped (make tools)", "%s has no version, sha256 %s", path, digest)
	}
	return ok("%s is %s, sha256 %s", path, version, digest)
}

func digest(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func sidecar(ctx context.Context, h *Host) Result {
	const means = "all of a workload's memory is loaded before it runs: wakes of large ones take longer"
	const do = "install hibernate-bin/checkpointgofer and runsc from one build, beside the shim"
	if h.Config.Load == config.LoadPlain {
		return ok("not used (load = plain)")
	}
	name := h.Config.Sidecar
	if !filepath.IsAbs(name) {
		shim, err := h.Find(shimProgram)
		if err != nil {
			return warning(means, do, "where the shim is, and so its sidecar, is not known: %v", err)
		}
		name = filepath.Join(filepath.Dir(shim), name)
	}
	version, err := h.Exec(ctx, name, "-version")
	if err != nil {
		return warning(means, do, "%v", err)
	}
	path, of, err := h.runscVersion(ctx)
	if err != nil {
		return warning(means, "mend runsc first", "it can't be compared with runsc: %v", err)
	}
	if version != of {
		return warning(means, do, "%s is for runsc %s, and %s is %s", name, version, path, of)
	}
	return ok("%s fits runsc %s", name, of)
}

// containerdSocket is where containerd answers unless told otherwise.
const containerdSocket = "/run/containerd/containerd.sock"

func containerd(ctx context.Context, h *Host) Result {
	version, err := h.Containerd(ctx, h.path(containerdSocket))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return warning("nothing starts workloads through it; what sleeps, sleeps and wakes all the same", "start containerd (systemctl start containerd); one at another socket is none of this check's",
			"no containerd at %s", containerdSocket)
	case err != nil:
		return problem("no workload can be started or stopped; what sleeps, sleeps and wakes all the same", "look at containerd's log, restart it", "%v", err)
	case before(version, "1.6"):
		return problem("it can't start this shim", "take containerd 1.6 or later", "containerd %s", version)
	}
	return ok("containerd %s", version)
}

// containerdConfigs are containerd's file, and what it imports from where install.sh puts ours.
func (h *Host) containerdConfigs() (text string) {
	files, _ := filepath.Glob(h.path("/etc/containerd/conf.d/*.toml"))
	for _, f := range append([]string{h.path("/etc/containerd/config.toml")}, files...) {
		if data, err := os.ReadFile(f); err == nil {
			text += string(data) + "\n"
		}
	}
	return text
}

func runtimeKnown(_ context.Context, h *Host) Result {
	if dirs, found := h.containerdPath(); found && !slices.ContainsFunc(dirs, func(dir string) bool { return h.exists(filepath.Join(dir, shimProgram)) }) {
		return problem("io.containerd.hibernate.v1 is not known to containerd: no workload starts", "install the shim into a directory of containerd's PATH, or beside containerd's own program",
			"%s is in none of %s", shimProgram, strings.Join(dirs, ", "))
	}
	text := h.containerdConfigs()
	switch {
	case !strings.Contains(text, "io.containerd.hibernate.v1"):
		return warning("ctr and nerdctl can use it, Kubernetes can't", "for Kubernetes: contrib/containerd/hibernate.toml, and restart containerd",
			"no runtime of type io.containerd.hibernate.v1 in /etc/containerd/config.toml or conf.d")
	case !strings.Contains(text, "io.containerd.hibernate/*"):
		return warning("pods' annotations, as identity or idle-timeout, don't reach the shim", "give the runtime pod_annotations and container_annotations, as contrib/containerd/hibernate.toml has them",
			"the runtime is known to CRI, without pod_annotations")
	case strings.Contains(text, "restrict_oom_score_adj = true"):
		return ok("known to CRI; restrict_oom_score_adj = true: containers may be killed sooner than their pods ask for")
	case !h.mayLowerOOM():
		return warning("pods whose oom_score_adj is below containerd's own don't start", "set restrict_oom_score_adj = true in containerd's CRI plugin", "containerd may not lower oom_score_adj here")
	}
	return ok("known to CRI")
}

// containerdPath are the directories in which a running containerd looks for shims; found: there is one, and they could be read.
func (h *Host) containerdPath() (dirs []string, found bool) {
	for _, proc := range h.processes("containerd") {
		environment, err := os.ReadFile(filepath.Join(proc, "environ"))
		if err != nil {
			continue
		}
		for v := range bytes.SplitSeq(environment, []byte{0}) {
			if path, is := strings.CutPrefix(string(v), "PATH="); is {
				dirs = append(dirs, filepath.SplitList(path)...)
			}
		}
		if exe, err := os.Readlink(filepath.Join(proc, "exe")); err == nil {
			dirs = append(dirs, filepath.Dir(exe))
		}
		return dirs, len(dirs) > 0
	}
	return nil, false
}

// processes are the directories in /proc of those with a name.
func (h *Host) processes(name string) (all []string) {
	found, _ := filepath.Glob(h.path("/proc/[0-9]*/comm"))
	for _, f := range found {
		if comm, err := os.ReadFile(f); err == nil && string(bytes.TrimSpace(comm)) == name {
			all = append(all, filepath.Dir(f))
		}
	}
	return all
}

// mayLowerOOM reports whether a containerd that runs has CAP_SYS_RESOURCE; true where there is none.
func (h *Host) mayLowerOOM() bool {
	for _, proc := range h.processes("containerd") {
		status, err := os.ReadFile(filepath.Join(proc, "status"))
		if err != nil {
			continue
		}
		for line := range bytes.Lines(status) {
			if hexed, is := bytes.CutPrefix(line, []byte("CapEff:")); is {
				var caps uint64
				_, _ = fmt.Sscanf(string(bytes.TrimSpace(hexed)), "%x", &caps)
				const sysResource = 24
				return caps&(1<<sysResource) != 0
			}
		}
	}
	return true
}

func daemon(ctx context.Context, h *Host) Result {
	resp, err := h.Daemon(ctx)
	switch {
	case err != nil:
		return problem("nothing goes to sleep by itself, and clients of sleepers are not held; what sleeps still wakes", "systemctl start hibernated; its log says why it ended", "%v", err)
	case resp.GetVersion() != h.Version:
		return warning("an upgrade is half done", "systemctl restart hibernated, which costs nobody a connection", "hibernated is %s, hibernatectl %s", resp.GetVersion(), h.Version)
	}
	return ok("hibernated %s runs since %s", resp.GetVersion(), time.UnixMilli(resp.GetStartedUnixMs()).UTC().Format(time.RFC3339))
}

func store(ctx context.Context, h *Host) Result {
	if h.Config.Store == "" {
		return ok("none is configured: snapshots are on this node alone")
	}
	resp, err := h.Daemon(ctx)
	s := resp.GetStore()
	const means = "new snapshots have no copy, and workloads with an identity may be put to sleep"
	const do = "docs/OPERATIONS.md, Copies of snapshots, has the errors"
	switch {
	case err != nil:
		return warning("whether the store answers is known to hibernated alone", "mend that first", "hibernated doesn't answer")
	case s == nil:
		return warning("hibernated has been started before it was configured", "systemctl restart hibernated", "the configuration names a store, and hibernated has none")
	case strings.HasPrefix(s.GetCondition(), "can't be used"):
		return problem(means, do, "the store %s", s.GetCondition())
	case s.GetFences() != "yes":
		return warning("it keeps snapshots, and can't keep two nodes from running one workload", do, "%s", s.GetCondition())
	case s.GetStuck() > 0:
		return warning(means, "hibernatectl ls names them, hibernatectl inspect says why", "%s, and lacks the newest snapshots of %d workloads, which are not tried again", s.GetCondition(), s.GetStuck())
	case time.Duration(s.GetAheadMs())*time.Millisecond > time.Minute || time.Duration(s.GetAheadMs())*time.Millisecond < -time.Minute:
		return warning("S3 refuses requests whose time is wrong by a quarter of an hour", "synchronise this machine's clock", "the store's clock differs from this machine's by %s",
			(time.Duration(s.GetAheadMs()) * time.Millisecond).Abs())
	case time.Duration(s.GetLagMs())*time.Millisecond > time.Hour:
		return warning(means, do, "%s, and has been without a newest snapshot for %s", s.GetCondition(), (time.Duration(s.GetLagMs()) * time.Millisecond).Round(time.Minute))
	}
	return ok("%s", s.GetCondition())
}
