package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/shim/journal"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// CreateRequest is what containerd asks for with Create.
type CreateRequest struct {
	Rootfs     []*types.Mount
	Terminal   bool
	Stdin      string
	Stdout     string
	Stderr     string
	Checkpoint string // directory of a checkpoint to restore at Start; "" for none
	ConfigPath string // runtime options
	ConfigBody string
}

// undoTimeout bounds taking back a failed operation.
const undoTimeout = 20 * time.Second

// Create makes a workload of one container, up to a created sandbox whose process doesn't run yet. On error nothing of
// it is left.
func Create(ctx context.Context, opts Options, req CreateRequest) (w *Workload, err error) {
	spec, err := readSpec(opts.Bundle)
	if err != nil {
		return nil, err
	}
	settings, err := config.Load(config.Input{
		File: config.DefaultFile, Match: config.Match{Namespace: opts.Namespace, Image: imageName(spec), Labels: spec.Annotations},
		ConfigPath: req.ConfigPath, ConfigBody: req.ConfigBody, Annotations: spec.Annotations,
	})
	if err != nil {
		return nil, err
	}
	w = newWorkload(opts, settings, spec)
	var u undo.Stack
	defer func() { // also of a panic, which the service catches
		late, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		if e := u.Run(late); e != nil {
			err = errors.Join(err, e)
		}
	}()
	for _, act := range []func(context.Context, CreateRequest, *undo.Stack) error{
		w.findIdentity, w.findPrograms, w.makePlaces, w.learnRootfs, w.mountRootfs, w.dropFilestore, w.openStdio, w.openSnapshots, w.makeCgroup, w.makeHolder, w.watchMemory,
		w.runCreateHooks, w.makeInner, w.freezeSpec, w.fromTemplate, w.findEarlier, w.findCheckpoint, w.checkVersion, w.createSandbox,
		w.publishRecord,
	} {
		if err := act(ctx, req, &u); err != nil {
			return nil, err
		}
	}
	u.Release()
	w.watchHolder()
	return w, nil
}

func newWorkload(opts Options, settings *config.Config, spec *specs.Spec) *Workload {
	p := places{opts.Bundle}
	w := &Workload{
		opts: opts, places: p, config: settings, spec: spec, hooks: spec.Hooks, image: imageName(spec),
		journal: journal.New(p.journal()), listeners: make(map[uint16]*os.File), leases: make(map[string]time.Time), changed: make(chan struct{}, 1),
		created: opts.Now(), since: opts.Now(), gate: "none",
		watchers: watchers{all: make(map[chan *shimv1.Event]struct{})},
	}
	w.askRight, w.tellUnused = w.askDaemon, w.tellDaemon
	return w
}

// findPrograms finds runsc and the helper, and says what to do about one that is missing or of another version.
func (w *Workload) findPrograms(_ context.Context, _ CreateRequest, _ *undo.Stack) error {
	path, err := w.config.RunscPath()
	if err != nil {
		return fmt.Errorf("no runsc: %w; install it, or give its path by the key runsc", err)
	}
	if w.helper, err = w.config.HelperPath(); err != nil {
		return fmt.Errorf("no helper: %w; install it beside the shim, or give its path by the key helper", err)
	}
	w.runsc = &runsc.Client{
		Path: path, Root: w.runscRoot(), Flags: w.runscFlags(),
		LogDir: w.places.logs(), CacheDir: w.config.RunDir, Runner: w.opts.Runner,
		Timeouts: runsc.Timeouts{Most: w.config.RunscTimeout},
	}
	w.findSidecar()
	return nil
}

func (w *Workload) makePlaces(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	for _, dir := range []string{w.places.dir(), w.places.sandbox(), w.places.logs()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("bundle: %w", err)
		}
	}
	u.Push("bundle files", func(context.Context) error { return os.RemoveAll(w.places.dir()) })
	if err := os.MkdirAll(w.runsc.Root, 0o700); err != nil {
		return fmt.Errorf("runsc's root: %w", err)
	}
	u.Push("runsc's root", func(context.Context) error { return w.runsc.RemoveRoot() })
	u.Push("facts of runsc", w.gatherFacts())
	return w.config.Save(w.places.settings())
}

func (w *Workload) mountRootfs(_ context.Context, req CreateRequest, u *undo.Stack) error {
	if len(req.Rootfs) == 0 {
		return nil
	}
	if err := os.MkdirAll(w.places.rootfs(), 0o711); err != nil {
		return fmt.Errorf("rootfs: %w", err)
	}
	u.Push("rootfs mount", func(context.Context) error { return mount.UnmountRecursive(w.places.rootfs(), 0) })
	return mountAll(req.Rootfs, w.places.rootfs())
}

func mountAll(mounts []*types.Mount, at string) error {
	for _, m := range mounts {
		one := mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options}
		if err := one.Mount(at); err != nil {
			return fmt.Errorf("mount rootfs (%s from %s): %w", m.Type, m.Source, err)
		}
	}
	return nil
}

func (w *Workload) openStdio(ctx context.Context, req CreateRequest, u *undo.Stack) error {
	c := &Container{
		ID: w.opts.ID, Bundle: w.opts.Bundle, Terminal: req.Terminal, ended: make(chan struct{}),
		Stdio: w.withLogger(w.opts.ID, stdio.Config{Stdin: req.Stdin, Stdout: req.Stdout, Stderr: req.Stderr, Terminal: req.Terminal, OnInput: w.inputCame}),
		execs: make(map[string]*Exec), state: lifecycle.Created,
	}
	relay, err := stdio.Open(ctx, c.Stdio)
	if err != nil {
		return fmt.Errorf("stdio: %w", err)
	}
	u.Push("stdio", relay.Finish)
	c.relay = relay
	w.containers = []*Container{c}
	return nil
}

// withLogger adds what a logging program needs. It is started beside the sandbox, in the shim's own control group, and
// the reaper sees its end.
func (w *Workload) withLogger(id string, c stdio.Config) stdio.Config {
	c.ID, c.Namespace = id, w.opts.Namespace
	c.Start = func(cmd *exec.Cmd) (<-chan struct{}, error) {
		if err := cmd.Start(); err != nil {
			return nil, err
		}
		exits, ended := w.opts.Exits.Watch(cmd.Process.Pid), make(chan struct{})
		_ = cmd.Process.Release() // nobody else waits for it
		go func() { <-exits; close(ended) }()
		return ended, nil
	}
	return c
}

// ownedWithin is how long the snapshots may be another's: the daemon's, which asks containerd before it removes what is left
// of a container, or those of an earlier shim's end.
const ownedWithin = 10 * time.Second

func (w *Workload) openSnapshots(ctx context.Context, _ CreateRequest, u *undo.Stack) error {
	var local *snapshot.Local
	open := func() (err error) {
		local, err = snapshot.OpenLocal(w.localDir(),
			snapshot.WithOwner(w.opts.Namespace, w.opts.ID, w.identity), snapshot.WithContainerd(w.opts.Containerd))
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, ownedWithin)
	defer cancel()
	err := open()
	for errors.Is(err, snapshot.ErrBusy) && pause(ctx, 10*time.Millisecond) {
		err = open()
	}
	if err != nil {
		return fmt.Errorf("snapshots: %w", w.whoHas(err))
	}
	w.local = local
	u.Push("snapshots", func(context.Context) error { return errors.Join(local.RemoveUnused(), local.Close()) })
	return nil
}

func (w *Workload) makeHolder(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	h, err := startHolder(w.helper, w.spec, w.group)
	if err != nil {
		return err
	}
	w.holder = h
	u.Push("holder", func(context.Context) error { return errors.Join(h.kill(), h.forget()) })
	if w.podNS, err = os.Open(h.namespace()); err != nil {
		return fmt.Errorf("the pod's network namespace: %w", err)
	}
	u.Push("namespace", func(context.Context) error { return w.podNS.Close() })
	return w.saveState()
}

// makeCgroup makes the container's cgroup before runsc sees it: runsc leaves alone what it finds, so the cgroup and its
// limits live through sleep, kept by the holder inside.
func (w *Workload) makeCgroup(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	if w.spec.Linux == nil {
		w.spec.Linux = &specs.Linux{}
	}
	if w.spec.Linux.CgroupsPath == "" {
		w.spec.Linux.CgroupsPath = filepath.Join("/hibernate", w.opts.Namespace, w.opts.ID)
	}
	group, err := cgroup.New(w.spec.Linux.CgroupsPath, w.spec.Linux.Resources)
	if err != nil {
		return fmt.Errorf("cgroup %s: %w", w.spec.Linux.CgroupsPath, err)
	}
	w.group = group
	u.Push("cgroup", func(context.Context) error { return group.Delete() })
	return w.saveState() // from here on there is something that `delete` must find
}

func (w *Workload) publishRecord(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	if err := w.holder.await(); err != nil {
		return err
	}
	if err := w.saveState(); err != nil {
		return err
	}
	self := identify(os.Getpid())
	u.Push("record", func(context.Context) error {
		return handover.RemoveRecord(w.config.RunDir, w.opts.Namespace, w.opts.ID)
	})
	return handover.WriteRecord(w.config.RunDir, handover.Record{
		Namespace: w.opts.Namespace, ID: w.opts.ID, Identity: w.identity, Address: w.opts.Address, Pid: self.Pid, StartTime: self.Start,
		Bundle: w.opts.Bundle, Version: w.opts.Version,
	})
}

func writeJSON(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, data, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, path)
}
