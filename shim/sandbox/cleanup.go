package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/shim/journal"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

func readState(path string) (stateFile, error) {
	var s stateFile
	data, err := os.ReadFile(path)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("%s is damaged: %w", path, err)
	}
	return s, nil
}

// earlierEnding is what a shim of an earlier version, which went on while this one was installed, has left to be run at the
// end: hooks alone. What they read is made of the bundle.
func earlierEnding(p places, s stateFile) *ending {
	var left struct {
		Hooks []byte `json:"hooks"` // JSON
	}
	data, err := os.ReadFile(p.state())
	e := ending{State: specs.State{ID: s.ID, Status: specs.StateStopped, Pid: s.Holder.Pid, Bundle: p.bundle}}
	if err != nil || json.Unmarshal(data, &left) != nil || json.Unmarshal(left.Hooks, &e.Hooks) != nil || len(e.Hooks) == 0 {
		return nil
	}
	if spec, err := readSpec(p.bundle); err == nil {
		e.State.Version, e.State.Annotations = spec.Version, spec.Annotations
	}
	return &e
}

// Leftover is what Cleanup found of a workload.
type Leftover struct {
	Pid    int
	Status uint32
	At     time.Time

	// What could not be done about what isn't ours, hooks and the pod's network: told and no more, since containerd would keep the
	// bundle for it, and the container could not be started again.
	Warning error
}

// Cleanup takes down what a shim that is gone, or given up, has left, from the bundle alone. It is idempotent. A workload that slept
// keeps its snapshot, and the gate in a namespace of others' making stays parked, so that its peers' connections wait
// for the container to be started again.
func Cleanup(ctx context.Context, bundle string, runner runsc.Runner) (Leftover, error) {
	left := Leftover{Status: killedStatus, At: time.Now()}
	s, err := readState(places{bundle}.state())
	if errors.Is(err, fs.ErrNotExist) {
		return left, mount.UnmountRecursive(places{bundle}.rootfs(), unix.MNT_DETACH)
	}
	if err != nil {
		return left, err
	}
	left.Pid = s.Holder.Pid
	if s.Member != nil {
		left.Warning, err = s.cleanMember(ctx, places{bundle}, runner)
		return left, err
	}
	client := &runsc.Client{
		Path: s.Runsc, Root: s.RunscRoot, Flags: s.RunscFlags, LogDir: places{bundle}.logs(), Runner: runner,
		Timeouts: runsc.Timeouts{Delete: cleanupDelete},
	}
	nameFilestore(s.Rootfs, s.ID)
	errs := []error{s.Shim.kill(), killCommands(s.RunscRoot, s.ID), client.Delete(ctx, s.ID, true), s.Sandbox.kill()}
	warning, err := s.cleanMembers(ctx, runner)
	errs = append(errs, err, unclaim(ctx, places{bundle}, s), removeUnused(s))
	left.Warning = errors.Join(warning, s.releasePod(ctx))
	errs = append(errs, network.RemoveNamespace(s.Inner), s.Holder.kill())
	left.Warning = errors.Join(left.Warning, s.runStopHooks(ctx, places{bundle}, runner))
	group, err := cgroup.Load(s.Cgroup)
	switch {
	case err == nil:
		err = group.Delete()
	case errors.Is(err, cgroup.ErrGone):
		err = nil
	}
	errs = append(errs, err, removeTraces(s.RunscRoot, s.ID), removeFilestores(s.Rootfs), mount.UnmountRecursive(s.Rootfs, unix.MNT_DETACH))
	if err := errors.Join(errs...); err != nil {
		return left, err
	}
	// Last: without a record nothing runs any more, and another node may have what has an identity.
	return left, errors.Join(handover.RemoveRecord(s.RunDir, s.Namespace, s.ID), client.RemoveRoot())
}

// runStopHooks runs the poststop hooks, unless they have run.
func (s stateFile) runStopHooks(ctx context.Context, p places, runner runsc.Runner) error {
	if s.Ending == nil {
		s.Ending = earlierEnding(p, s)
	}
	if s.Ending == nil {
		return nil
	}
	err := s.Ending.run(ctx, runner)
	s.Ending = nil
	return errors.Join(err, writeJSON(p.state(), s))
}

// cleanupDelete bounds runsc's part of Cleanup: containerd waits five seconds for all of it.
const cleanupDelete = 3 * time.Second

// releasePod removes what the shim did to a pod namespace that outlives it. Of a sleeper the gate stays, parked. It comes before
// the inner namespace goes.
func (s stateFile) releasePod(ctx context.Context) error {
	if s.Pod == "" || !s.Linked {
		return nil
	}
	head, err := snapshot.ReadHead(s.Snapshot)
	if err == nil && head.State == snapshot.Asleep {
		return network.Park(ctx, network.Options{Pod: s.Pod, Attachment: s.Attachment})
	}
	return network.Remove(ctx, network.Options{Pod: s.Pod, Inner: s.Inner})
}

// removeUnused removes the snapshots' directory of a container that never had one, since its creation was cut short.
func removeUnused(s stateFile) error {
	if _, err := snapshot.ReadHead(s.Snapshot); !errors.Is(err, snapshot.ErrNoHead) {
		return nil
	}
	local, err := snapshot.OpenLocal(s.Snapshot, snapshot.WithOwner(s.Namespace, s.ID, s.Identity))
	if err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	return errors.Join(local.RemoveUnused(), local.Close())
}

// unclaim gives a sleeper's snapshot back when its shim died in a wake, before anything of it could run: what sleeps on
// the disk is then still all of its state.
func unclaim(ctx context.Context, p places, s stateFile) error {
	entry, err := journal.Read(p.journal())
	if err != nil || entry.Operation != "wake" || !slices.Contains(beforeRestore, entry.Step) {
		return err
	}
	local, err := snapshot.OpenLocal(s.Snapshot, snapshot.WithOwner(s.Namespace, s.ID, s.Identity))
	if err != nil {
		return fmt.Errorf("snapshots: %w", err)
	}
	head, err := local.Head()
	if err == nil && head.State == snapshot.Awake {
		err = local.SetState(ctx, snapshot.Asleep)
	}
	return errors.Join(err, local.Close())
}

// beforeRestore are the journal's steps of a wake in which the snapshot is not yet in use.
var beforeRestore = []string{"begin", "choose", "store", "right", "verify", "fetch", "boot", "inner", "claim", "mute"}
