package sandbox

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/cgroups/v3"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
)

func readSpec(bundle string) (*specs.Spec, error) {
	path := filepath.Join(bundle, "config.json")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("bundle: %w", err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return nil, fmt.Errorf("%s is not a runtime specification: %w", path, err)
	}
	if spec.Process == nil || spec.Root == nil {
		return nil, fmt.Errorf("%s has no process or no root", path)
	}
	return &spec, nil
}

// imageNames are the annotations by which a container's image is known, the most reliable first.
var imageNames = []string{"io.kubernetes.cri.image-name", "nerdctl/image", "io.containerd.image.name"}

func imageName(spec *specs.Spec) string {
	for _, key := range imageNames {
		if name := spec.Annotations[key]; name != "" {
			return name
		}
	}
	return ""
}

// runscFlags are the global flags of every runsc call for this workload. They are recorded in the manifest, since most
// must be the same when it is restored.
func (w *Workload) runscFlags() []string {
	// One namespace for what has no network, pinned once a node instead of once a root.
	flags := append(runsc.DefaultFlags(w.config.Platform), "--shared-root="+w.config.RunscRoot())
	flags = append(flags, w.config.RunscFlags...)
	if w.spawned = bornInside(w.spec.Linux); w.spawned {
		flags = append(flags, "--ignore-cgroups")
	}
	if _, host := podNamespace(w.spec); host {
		flags = slices.DeleteFunc(flags, func(f string) bool { return strings.HasPrefix(f, "--network=") })
		flags = append(flags, "--network=host")
	}
	return flags
}

// bornInside says whether the sandbox is started inside its control group instead of joining it. On cgroup v1 runsc takes
// some 20 ms to join, a good part of a wake. A sandbox with limits joins all the same: runsc tells it the memory and the
// CPUs that it has from the group that it joined.
func bornInside(l *specs.Linux) bool {
	if cgroups.Mode() == cgroups.Unified {
		return false
	}
	if l == nil {
		return true
	}
	r := cgroup.Asked(l.Resources)
	return (r.Memory == nil || r.Memory.Limit == nil) && (r.CPU == nil || r.CPU.Quota == nil && r.CPU.Cpus == "")
}

// runscRoot is a directory of the workload's own. runsc takes an id for the beginning of one: in a root with others, web
// could be web-2. The name is short, since the path of the sandbox's socket, with a long id, has no more than 107 bytes.
func (w *Workload) runscRoot() string {
	sum := sha256.Sum256([]byte(w.opts.Namespace + "/" + w.opts.ID))
	return filepath.Join(w.config.RunscRoot(), hex.EncodeToString(sum[:5]))
}

// makeInner makes the sandbox's own network namespace, or says why the sandbox runs in the pod's.
func (w *Workload) makeInner(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	w.fixedReason = w.whyNoLink()
	if w.fixedReason != nil {
		return nil
	}
	path := w.innerPath()
	if err := os.MkdirAll(filepath.Dir(path), 0o711); err != nil {
		return fmt.Errorf("inner namespace: %w", err)
	}
	if err := network.RemoveNamespace(path); err != nil { // of an earlier shim
		return fmt.Errorf("inner namespace: %w", err)
	}
	if err := network.NewNamespace(path); err != nil {
		return fmt.Errorf("inner namespace: %w", err)
	}
	u.Push("inner namespace", func(context.Context) error { return network.RemoveNamespace(path) })
	return nil
}

func (w *Workload) innerPath() string {
	return filepath.Join(w.config.RunDir, "netns", w.opts.Namespace, w.opts.ID)
}

// whyNoLink gives the reason that stands from Create on for a sandbox without an inner link.
func (w *Workload) whyNoLink() *shimv1.Reason {
	switch {
	case w.config.Mode == config.ModeOff:
		return reason("mode-off", "mode is off")
	case w.holder.host:
		return reason("host-network", "the container uses the host's network: nothing can hold its connections")
	}
	if other := w.sharesNamespace(); other != "" {
		return reason("namespace-shared", "the network namespace is that of workload "+other+
			"; only the first in a namespace can hibernate")
	}
	return nil
}

// freezeSpec writes the specification that runsc sees. It is the same at every restore.
func (w *Workload) freezeSpec(_ context.Context, req CreateRequest, _ *undo.Stack) error {
	w.spec.Hooks = nil                     // run once, by us
	w.spec.Process.Terminal = req.Terminal // as an exec's
	if score := w.spec.Process.OOMScoreAdj; score != nil {
		w.oomScore, w.spec.Process.OOMScoreAdj = *score, nil
	}
	if !filepath.IsAbs(w.spec.Root.Path) {
		w.spec.Root.Path = filepath.Join(w.opts.Bundle, w.spec.Root.Path)
	}
	settleGroup(w.spec, w.group.Path())
	if w.identity != "" {
		dropName(w.spec)
	}
	w.setNetwork(w.innerPath())
	return w.writeSpec()
}

// settleGroup leaves runsc the container's own control group, by the name of its directory, whatever the specification calls
// it: a name in systemd's words has runsc ask systemd for another group, a relative one is relative to the shim's, and an
// annotation of gVisor's may name any. What limits the group is ours, for Update to change: runsc would write the swap of the
// beginning at each wake.
func settleGroup(spec *specs.Spec, path string) {
	spec.Linux.CgroupsPath = path
	delete(spec.Annotations, groupAnnotation)
	if res := spec.Linux.Resources; res != nil && res.Memory != nil && res.Memory.Swap != nil {
		limits, memory := *res, *res.Memory
		memory.Swap, limits.Memory = nil, &memory
		spec.Linux.Resources = &limits
	}
}

// groupAnnotation has runsc put a sandbox in the control group that it names.
const groupAnnotation = "dev.gvisor.spec.cgroup-parent"

func (w *Workload) setNetwork(path string) {
	if w.fixedReason != nil {
		path = w.holder.namespace()
		if w.holder.given != "" {
			path = w.holder.given
		}
	}
	for i, n := range w.spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			w.spec.Linux.Namespaces[i].Path = path
		}
	}
}

func (w *Workload) writeSpec() error {
	data, err := json.Marshal(w.masked())
	if err != nil {
		return fmt.Errorf("specification: %w", err)
	}
	if err := os.WriteFile(filepath.Join(w.places.sandbox(), "config.json"), data, 0o600); err != nil {
		return fmt.Errorf("specification: %w", err)
	}
	return nil
}

func reason(code, detail string) *shimv1.Reason { return &shimv1.Reason{Code: code, Detail: detail} }
