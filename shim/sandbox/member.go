package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/runtime"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// Annotations by which runsc knows that a container joins a sandbox.
const (
	typeAnnotation    = "io.kubernetes.cri.container-type"
	sandboxAnnotation = "io.kubernetes.cri.sandbox-id"
)

// AddContainer makes a container of the pod, up to what Start needs; gVisor hears of it then, so a sleeper sleeps on. On error nothing of it is left.
func (w *Workload) AddContainer(ctx context.Context, id, bundle string, req CreateRequest) (err error) {
	if req.Checkpoint != "" {
		return fmt.Errorf("a container of a pod can't be restored by itself, since gVisor restores all of a sandbox: %w", ErrPrecondition)
	}
	spec, err := readSpec(bundle)
	if err != nil {
		return err
	}
	c := &Container{
		ID: id, Bundle: bundle, Terminal: req.Terminal, ended: make(chan struct{}), execs: make(map[string]*Exec), state: lifecycle.Created,
		Stdio: w.withLogger(id, stdio.Config{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Terminal: req.Terminal, OnInput: w.inputCame}),
		member: &member{
			name: spec.Annotations[containerNameAnnotation], spec: spec, image: imageName(spec), hooks: spec.Hooks, places: places{bundle},
			dir: memberDir(w.config.RunDir, w.opts.Namespace, w.opts.ID, id), left: make(chan struct{}),
		},
	}
	var u undo.Stack
	defer func() {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if e := u.Run(late); e != nil {
			err = errors.Join(err, e)
		}
	}()
	for _, act := range []func(context.Context, *Container, CreateRequest, *undo.Stack) error{
		w.enlist, w.makeMemberPlaces, w.mountMember, w.openMemberStdio, w.groupMember, w.hookMember, w.freezeMember,
	} {
		if err := act(ctx, c, req, &u); err != nil {
			return err
		}
	}
	u.Release()
	return nil
}

// enlist takes the container into the pod, where its id is not taken and the pod goes on.
func (w *Workload) enlist(_ context.Context, c *Container, _ CreateRequest, u *undo.Stack) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case slices.ContainsFunc(w.containers, func(o *Container) bool { return o.ID == c.ID }):
		return fmt.Errorf("container %s: %w", c.ID, ErrExists)
	case !w.root().live() || w.killed:
		return fmt.Errorf("the pod's sandbox %s has ended: %w", w.opts.ID, ErrPrecondition)
	}
	if c.member.name == "" {
		c.member.name = c.ID
	}
	if slices.ContainsFunc(w.members(), func(o *Container) bool { return o.member.name == c.member.name }) {
		c.member.name += "-" + c.ID // the earlier one of a name goes before it comes back
	}
	w.containers = append(w.containers, c)
	u.Push("container", func(context.Context) error { w.forgetMember(c); return nil })
	return nil
}

func (w *Workload) forgetMember(c *Container) {
	w.mu.Lock()
	defer w.mu.Unlock()
	same := func(o *Container) bool { return o == c }
	w.containers = slices.DeleteFunc(slices.Clone(w.containers), same)
	w.joined = slices.DeleteFunc(slices.Clone(w.joined), same)
}

func (w *Workload) makeMemberPlaces(_ context.Context, c *Container, _ CreateRequest, u *undo.Stack) error {
	for _, dir := range []string{c.member.places.dir(), c.member.rootfs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("container's files: %w", err)
		}
	}
	u.Push("container's files", func(context.Context) error {
		return errors.Join(os.RemoveAll(c.member.places.dir()), removeMemberDir(c.member.dir))
	})
	return w.saveMember(c)
}

// removeMemberDir removes what a member had outside its bundle, whose root file system is unmounted.
func removeMemberDir(dir string) error {
	if err := mount.UnmountRecursive(filepath.Join(dir, "rootfs"), unix.MNT_DETACH); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Remove(filepath.Join(dir, "rootfs")); err != nil && !errors.Is(err, os.ErrNotExist) { // never recursive: it may be mounted
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for range 2 { // those of the sandbox and of the namespace, with the last
		dir = filepath.Dir(dir)
		if os.Remove(dir) != nil {
			break
		}
	}
	return nil
}

// mountMember mounts the root file system where the pod keeps it, so that a sleeper's is there for the wake whatever becomes of the container's bundle.
func (w *Workload) mountMember(_ context.Context, c *Container, req CreateRequest, _ *undo.Stack) error {
	at := c.member.rootfs()
	if len(req.Rootfs) == 0 { // it is there already
		path := c.member.spec.Root.Path
		if !filepath.IsAbs(path) {
			path = filepath.Join(c.Bundle, path)
		}
		bind := mount.Mount{Type: "bind", Source: path, Options: []string{"rbind"}}
		if err := bind.Mount(at); err != nil {
			return fmt.Errorf("mount rootfs (%s): %w", path, err)
		}
	}
	if err := mountAll(req.Rootfs, at); err != nil {
		return err
	}
	c.member.layers, c.member.files = req.Rootfs, isFileSource(c.member.spec)
	c.member.spec.Root.Path = at
	return removeFilestores(at) // of an earlier shim
}

func (w *Workload) openMemberStdio(ctx context.Context, c *Container, _ CreateRequest, u *undo.Stack) (err error) {
	if c.relay, err = stdio.Open(ctx, c.Stdio); err != nil {
		return fmt.Errorf("stdio: %w", err)
	}
	u.Push("stdio", c.relay.Finish)
	return nil
}

// groupMember makes the container's control group, which whoever counts and limits looks for. Its processes are the sandbox's, and so in the root's.
func (w *Workload) groupMember(_ context.Context, c *Container, _ CreateRequest, u *undo.Stack) (err error) {
	spec := c.member.spec
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	if spec.Linux.CgroupsPath == "" {
		spec.Linux.CgroupsPath = filepath.Join("/hibernate", w.opts.Namespace, c.ID)
	}
	if c.member.group, err = cgroup.New(spec.Linux.CgroupsPath, spec.Linux.Resources); err != nil {
		return fmt.Errorf("cgroup %s: %w", spec.Linux.CgroupsPath, err)
	}
	u.Push("cgroup", func(context.Context) error { return c.member.group.Delete() })
	return w.saveMember(c)
}

func (w *Workload) hookMember(ctx context.Context, c *Container, _ CreateRequest, u *undo.Stack) error {
	h := c.member.hooks
	if h == nil {
		return nil
	}
	u.Push("poststop hooks", func(ctx context.Context) error { return w.memberEnding(c).run(ctx, w.opts.Runner) })
	//lint:ignore SA1019 prestart is deprecated, and still what older engines send
	hooks := append(append([]specs.Hook{}, h.Prestart...), h.CreateRuntime...)
	return runHooks(ctx, w.opts.Runner, hooks, w.memberState(c, specs.StateCreated))
}

// memberState is what a hook of the member's reads.
func (w *Workload) memberState(c *Container, status specs.ContainerState) specs.State {
	return specs.State{
		Version: c.member.spec.Version, ID: c.ID, Status: status, Pid: w.holder.Pid, Bundle: c.Bundle, Annotations: c.member.spec.Annotations,
	}
}

func (w *Workload) memberEnding(c *Container) *ending {
	if c.member.hooks == nil || len(c.member.hooks.Poststop) == 0 {
		return nil
	}
	return &ending{c.member.hooks.Poststop, w.memberState(c, specs.StateStopped)}
}

// freezeMember writes the specification that runsc sees, the same at every restore.
func (w *Workload) freezeMember(_ context.Context, c *Container, req CreateRequest, _ *undo.Stack) error {
	spec := c.member.spec
	spec.Hooks, spec.Process.Terminal = nil, req.Terminal
	c.member.oomScore, spec.Process.OOMScoreAdj = spec.Process.OOMScoreAdj, nil
	settleGroup(spec, c.member.group.Path())
	joinPids(spec)
	if spec.Annotations == nil {
		spec.Annotations = make(map[string]string)
	}
	spec.Annotations[typeAnnotation], spec.Annotations[sandboxAnnotation] = "container", w.opts.ID
	spec.Annotations[containerNameAnnotation] = c.member.name
	if err := writeJSON(filepath.Join(c.member.dir, "config.json"), spec); err != nil {
		return fmt.Errorf("specification: %w", err)
	}
	return nil
}

// joinPids has a container that shares processes with another one of the pod see those of the root's namespace, where the root's init is the first. gVisor would have the first container that
// names a namespace be the init of it, and all others end with that one.
func joinPids(spec *specs.Spec) {
	spec.Linux.Namespaces = slices.DeleteFunc(slices.Clone(spec.Linux.Namespaces), func(n specs.LinuxNamespace) bool {
		return n.Type == specs.PIDNamespace && n.Path != ""
	})
}

// StartContainer runs a created container. A member's start wakes the pod.
func (w *Workload) StartContainer(ctx context.Context, id string) error {
	w.mu.Lock()
	c, err := w.container(id)
	if err == nil && c.member == nil {
		w.mu.Unlock()
		return w.Start(ctx)
	}
	told := make(chan struct{})
	switch {
	case err != nil:
		err = fmt.Errorf("container %s: %w", id, err)
	case c.starting != nil:
		err = fmt.Errorf("container %s was started before: %w", id, ErrPrecondition)
	case w.anyPaused():
		err = ErrPaused
	case w.root().state != lifecycle.Running:
		err = fmt.Errorf("the pod's sandbox %s is %s: %w", w.opts.ID, w.root().state, ErrPrecondition)
	default:
		if _, err = c.state.Next(lifecycle.Start); err == nil {
			c.starting = told
		}
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	err = w.join(ctx, c)
	if err == nil {
		w.opts.Publish(runtime.TaskStartEventTopic, &events.TaskStart{ContainerID: c.ID, Pid: uint32(w.holder.Pid)})
	}
	close(told)
	if err != nil {
		w.mu.Lock()
		c.starting = nil
		w.mu.Unlock()
		return err
	}
	if c.member.hooks != nil {
		return runHooks(ctx, w.opts.Runner, c.member.hooks.Poststart, w.memberState(c, specs.StateRunning))
	}
	return nil
}

// holdChange is hold for a change of what is in the sandbox, which not even a stop's hibernation cuts into.
func (w *Workload) holdChange(ctx context.Context, why string) (release func(), err error) {
	for {
		w.setStopping(false) // who starts a container has no stop in mind
		free, err := w.hold(ctx, why)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		awake := w.state == lifecycle.Awake
		if awake {
			w.changing++
		}
		w.mu.Unlock()
		free()
		if awake {
			return w.changeEnds, nil
		}
	}
}

// changeEnds ends one change of what is in the sandbox.
func (w *Workload) changeEnds() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changing--
	w.announce(nil)
}

// join adds the container to the sandbox, which is awake, and runs it.
func (w *Workload) join(ctx context.Context, c *Container) error {
	if placed, err := w.takePlace(ctx, c); placed || err != nil {
		return err
	}
	release, err := w.holdChange(ctx, "start")
	if err != nil {
		return fmt.Errorf("start of %s: %w", c.member.name, err)
	}
	defer release()
	w.mu.Lock()
	generation := w.generation
	c.member.inside = true
	w.joined = append(w.joined, c)
	w.mu.Unlock()
	err = w.createMember(ctx, c)
	if err == nil {
		err = w.runsc.StartJoined(ctx, c.ID, runsc.JoinOptions{IO: c.io(), Runner: w.bornRunner()})
	}
	if err != nil {
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return errors.Join(err, w.takeOut(late, c))
	}
	w.scoreMember()
	w.mu.Lock()
	if next, e := c.state.Next(lifecycle.Start); e == nil { // else it has ended already
		c.state = next
	}
	w.announce(nil)
	w.mu.Unlock()
	go w.watchMember(c, generation)
	return nil
}

// bornRunner runs what is to be born in the sandbox's control group; nil where runsc joins it.
func (w *Workload) bornRunner() runsc.Runner {
	if w.spawned {
		return w.opts.Born.RunnerIn(w.group)
	}
	return nil
}

// createMember tells the sandbox of a member.
func (w *Workload) createMember(ctx context.Context, c *Container) error {
	return w.runsc.Create(ctx, c.ID, runsc.CreateOptions{Bundle: c.member.dir, ConsoleSocket: c.relay.ConsoleSocket(), IO: c.io()})
}

// scoreMember gives the sandbox the lowest of its containers' scores: it is needed by all of them.
func (w *Workload) scoreMember() {
	w.mu.Lock()
	score, pid := w.podScore(), w.sandboxPid
	w.mu.Unlock()
	if pid == 0 {
		return
	}
	if err := cgroup.SetOOMScore(pid, score); err != nil {
		w.opts.Log.Warn("out-of-memory score", "error", err)
	}
}

// podScore is the sandbox's score. The caller holds w.mu.
func (w *Workload) podScore() int {
	score, found := w.oomScore, false
	for _, c := range w.members() {
		if s := c.member.oomScore; s != nil && c.member.inside && (!found || *s < score) {
			score, found = *s, true
		}
	}
	return score
}

// DeleteContainer removes a container that has ended or never started. The root takes with it all that was made for the pod's sandbox.
func (w *Workload) DeleteContainer(ctx context.Context, id string) (Exit, error) {
	w.mu.Lock()
	c, err := w.container(id)
	if err == nil && c.member == nil {
		w.mu.Unlock()
		return w.Delete(ctx, id)
	}
	created := err == nil && c.state == lifecycle.Created
	if err == nil {
		_, err = c.state.Next(lifecycle.Delete)
	} else {
		err = fmt.Errorf("container %s: %w", id, err)
	}
	w.mu.Unlock()
	if err != nil {
		return Exit{}, err
	}
	if created {
		w.memberEnded(c, killedStatus, w.opts.Now())
	}
	select {
	case <-ctx.Done():
		return Exit{}, context.Cause(ctx)
	case <-c.ended:
	}
	if err := c.letGo(); err != nil {
		w.opts.Log.Debug("output", "container", c.ID, "error", err)
	}
	if err := w.memberEnding(c).run(ctx, w.opts.Runner); err != nil {
		w.opts.Log.Warn("poststop hook", "error", err)
	}
	w.mu.Lock()
	ghost := c.member.inside && w.state != lifecycle.Awake && w.state != lifecycle.Ended
	w.mu.Unlock()
	if ghost {
		if err := w.keepGhost(c); err != nil {
			w.opts.Log.Error("a container that ended while the pod slept", "container", c.ID, "error", err)
		}
	} else {
		select {
		case <-ctx.Done():
			return Exit{}, context.Cause(ctx)
		case <-c.member.left:
		}
	}
	err = errors.Join(c.member.group.Delete(), os.RemoveAll(c.member.places.dir()))
	w.mu.Lock()
	c.state, _ = c.state.Next(lifecycle.Delete)
	left := !c.member.inside
	w.mu.Unlock()
	if left {
		err = errors.Join(err, w.removeMember(c))
	}
	return c.exit, err
}

// removeMember removes what is left of a member that is deleted, and that the sandbox has forgotten.
func (w *Workload) removeMember(c *Container) error {
	w.forgetMember(c)
	return removeMemberDir(c.member.dir)
}

// Gone says whether no container is left.
func (w *Workload) Gone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !slices.ContainsFunc(w.containers, func(c *Container) bool { return c.state != lifecycle.Deleted })
}
