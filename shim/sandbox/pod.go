package sandbox

import (
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/api/types"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A *pod* is a workload of several containers in one sandbox. Its first one, the *root*, makes the sandbox, ends with it, and is created and started as a container
// outside a pod is. The others are *members*: each joins the sandbox that runs (member.go), and ends alone (memberexit.go). The pod hibernates as a whole.
//
// A member is *inside* from its Start until the sandbox has forgotten it; gVisor counts exactly those in a checkpoint, so a sleeper's snapshot has them, too. One that is
// created and not started is nothing to gVisor yet, and hinders no sleep. One that is ended while it sleeps is a *ghost*: ended for containerd, and still in the
// snapshot; the next wake restores it with the rest and drops it before anybody reaches the pod. docs/decisions/0012.

// member is what a container that is not the workload's root has for itself.
type member struct {
	name     string // by which gVisor knows it; unique among those inside
	spec     *specs.Spec
	image    string
	hooks    *specs.Hooks
	places   places // in its own bundle
	dir      string // runsc's bundle and the root file system, which outlive the container's own bundle in a sleeping pod
	group    *cgroup.Group
	oomScore *int
	use      usage
	layers   []*types.Mount  // of the root file system
	files    map[string]bool // of the sources of its mounts: no directories

	inside bool          // guarded by Workload.mu
	left   chan struct{} // closed when the sandbox has forgotten it
}

func (m *member) rootfs() string { return filepath.Join(m.dir, "rootfs") }

// io is what runsc gives the container's init.
func (c *Container) io() runsc.IO {
	stdin, stdout, stderr := c.relay.Files()
	return runsc.IO{Stdin: stdin, Stdout: stdout, Stderr: stderr}
}

// live says whether the container has not ended. The caller holds the workload's mutex.
func (c *Container) live() bool { return c.state != lifecycle.Stopped && c.state != lifecycle.Deleted }

// isLive is live for who doesn't hold w.mu.
func (w *Workload) isLive(c *Container) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return c.live()
}

// members are the containers beside the root, in the order of their creation. The caller holds w.mu.
func (w *Workload) members() []*Container {
	if len(w.containers) == 0 {
		return nil
	}
	return w.containers[1:]
}

// inside are the members that the sandbox, or a sleeper's snapshot, has, in the order in which they joined.
func (w *Workload) inside() []*Container {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.insideLocked()
}

func (w *Workload) insideLocked() (list []*Container) {
	for _, c := range w.joined {
		if c.member.inside {
			list = append(list, c)
		}
	}
	return list
}

// ID is the workload's: its root's.
func (w *Workload) ID() string { return w.opts.ID }

// anyPaused says whether a user has paused a container, and so, since gVisor knows no less, the sandbox. The caller holds w.mu.
func (w *Workload) anyPaused() bool {
	return slices.ContainsFunc(w.containers, func(c *Container) bool { return c.state == lifecycle.Paused })
}

// podBlockers are the reasons of members not to hibernate. The caller holds w.mu.
func (w *Workload) podBlockers() (all []*shimv1.Reason) {
	for _, c := range w.members() {
		if c.Terminal && c.member.inside {
			all = append(all, reason("terminal", "a terminal is attached to "+c.member.name+": its controlling process would not survive a restore"))
		}
		if c.member.inside && !w.config.AllowNetAdmin && hasCapability(c.member.spec, "CAP_NET_ADMIN") {
			all = append(all, reason("net-admin", "the process of "+c.member.name+" has CAP_NET_ADMIN: addresses, routes and rules that it sets would be lost"))
		}
	}
	if w.changing > 0 {
		all = append(all, reason("containers", "a container is being started in the pod, or taken out of it"))
	}
	return all
}

// memberDir is where a member has its files outside its bundle.
func memberDir(runDir, namespace, sandbox, id string) string {
	return filepath.Join(runDir, "pods", namespace, sandbox, id)
}
