package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
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

// Leftover is what Cleanup found of a workload.
type Leftover struct {
	Pid    int
	Status uint32
	At     time.Time
}

// Cleanup takes down what a shim that is gone has left, from the bundle alone. It is idempotent. A workload that slept
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
	client := &runsc.Client{
		Path: s.Runsc, Root: s.RunscRoot, Flags: s.RunscFlags, LogDir: places{bundle}.logs(), Runner: runner,
		Timeouts: runsc.Timeouts{Delete: cleanupDelete},
	}
	errs := []error{client.Delete(ctx, s.ID, true), s.Sandbox.kill()}
	errs = append(errs, s.releaseNetwork(ctx), s.Holder.kill())
	var hooks []specs.Hook
	if len(s.Hooks) > 0 && json.Unmarshal(s.Hooks, &hooks) == nil {
		errs = append(errs, runHooks(ctx, runner, hooks, specs.State{
			ID: s.ID, Status: specs.StateStopped, Pid: s.Holder.Pid, Bundle: bundle,
		}))
	}
	group, err := cgroup.Load(s.Cgroup)
	if err == nil {
		err = group.Delete()
	}
	errs = append(errs, err, removeFilestores(s.Rootfs), mount.UnmountRecursive(s.Rootfs, unix.MNT_DETACH),
		handover.RemoveRecord(s.RunDir, s.Namespace, s.ID))
	return left, errors.Join(errs...)
}

// cleanupDelete bounds runsc's part of Cleanup: containerd waits five seconds for all of it.
const cleanupDelete = 3 * time.Second

// releaseNetwork removes the inner namespace, and what the shim did to a pod namespace that outlives it, unless the
// workload sleeps.
func (s stateFile) releaseNetwork(ctx context.Context) error {
	var err error
	if head, e := snapshot.ReadHead(s.Snapshot); s.Pod != "" && s.Linked && (e != nil || head.State != snapshot.Asleep) {
		err = network.Remove(ctx, network.Options{Pod: s.Pod, Inner: s.Inner})
	}
	return errors.Join(err, network.RemoveNamespace(s.Inner))
}
