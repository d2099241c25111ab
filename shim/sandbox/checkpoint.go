package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Checkpoint writes a checkpoint of the container, in a pod of all of them, into dir, which it makes where it isn't there, as snapshot.Export says: of a
// sleeper a copy of its snapshot, without waking it; else one of its sandbox, which goes on as it was, paused or not. With
// exit the container then ends as by SIGKILL. A hibernation or wake under way is let end first. Errors: ErrPrecondition, *RefusedError, os.ErrExist,
// ctx's, or what failed; the container is then as it was.
func (w *Workload) Checkpoint(ctx context.Context, id, dir string, exit bool) error {
	ctx, cancel := context.WithTimeout(ctx, hibernateTimeout)
	defer cancel()
	asleep, release, err := w.claimCheckpoint(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	w.background.Go(func() { // Delete waits for it
		defer release()
		done <- intoDir(dir, func() error {
			if asleep {
				return w.copySnapshot(ctx, dir)
			}
			return w.checkpointSandbox(ctx, dir)
		})
	})
	if err := <-done; err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	w.opts.Publish(runtime.TaskCheckpointedEventTopic, &events.TaskCheckpointed{ContainerID: id, Checkpoint: dir})
	if exit {
		return w.Kill(ctx, id, "", syscall.SIGKILL, true)
	}
	return nil
}

// intoDir makes dir, with the directories above it, for fill, and takes it away again when fill fails.
func intoDir(dir string, fill func() error) error {
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	switch err := os.Mkdir(dir, 0o700); {
	case errors.Is(err, os.ErrExist):
		return fill()
	case err != nil:
		return err
	}
	if err := fill(); err != nil {
		return errors.Join(err, os.Remove(dir))
	}
	return nil
}

// claimCheckpoint keeps the workload from hibernating, and a user from pausing and resuming it, until release is called.
func (w *Workload) claimCheckpoint(ctx context.Context) (asleep bool, release func(), err error) {
	for {
		if err := w.loadEnds(ctx); err != nil {
			return false, nil, err
		}
		w.mu.Lock()
		t, done := w.transition, make(chan struct{})
		switch state := w.root().state; {
		case state != lifecycle.Running && state != lifecycle.Paused:
			err = fmt.Errorf("the container is %s: %w", state, ErrPrecondition)
		case w.checkpointing != nil:
			err = fmt.Errorf("another checkpoint of the container is being written: %w", ErrPrecondition)
		case t == nil:
			w.checkpointing = done
			w.busy++
			asleep = w.state != lifecycle.Awake
		}
		w.mu.Unlock()
		if err != nil || t == nil {
			return asleep, func() { w.releaseCheckpoint(done) }, err
		}
		if _, err := t.result(ctx); ctx.Err() != nil {
			return false, nil, err
		}
	}
}

func (w *Workload) releaseCheckpoint(done chan struct{}) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkpointing = nil
	w.busy--
	close(done)
}

// checkpointEnds waits until no checkpoint is being written: a sandbox must not be resumed in the middle of one.
func (w *Workload) checkpointEnds(ctx context.Context) error {
	for {
		w.mu.Lock()
		done := w.checkpointing
		w.mu.Unlock()
		if done == nil {
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (w *Workload) copySnapshot(ctx context.Context, dir string) error {
	s, err := w.local.Current()
	if err != nil {
		return fmt.Errorf("snapshot: %w", err)
	}
	err = s.Export(ctx, dir)
	if errors.Is(err, snapshot.ErrCorrupt) {
		err = fmt.Errorf("%w: %w", ErrPrecondition, err)
	}
	return err
}

// lasting are the blockers for which a checkpoint could not be restored either.
var lasting = []string{"host-network", "terminal", "net-admin", "exec"}

// checkpointSandbox makes a checkpoint as a hibernation does, but for the network: connections stay the sandbox's, and what
// is restored from the copy finds them broken.
func (w *Workload) checkpointSandbox(ctx context.Context, dir string) error {
	w.mu.Lock()
	reasons := slices.DeleteFunc(w.blockers(true), func(r *shimv1.Reason) bool { return !slices.Contains(lasting, r.GetCode()) })
	paused := w.anyPaused()
	w.mu.Unlock()
	if len(reasons) > 0 {
		return &RefusedError{Reasons: reasons, Verb: "be restored from it"}
	}
	if err := w.checkSpace(); err != nil {
		return err
	}
	if err := w.sameRunsc(ctx); err != nil {
		return err
	}
	w.hideFilestore()
	incoming, err := w.local.Begin(ctx)
	if err != nil {
		return err
	}
	err = w.fillCheckpoint(ctx, incoming, paused)
	if err == nil {
		err = w.handOut(ctx, incoming, dir)
	}
	return errors.Join(err, incoming.Discard())
}

// fillCheckpoint has runsc write to its end, whoever leaves: one cut short could leave the sandbox paused.
func (w *Workload) fillCheckpoint(ctx context.Context, incoming *snapshot.Incoming, paused bool) (err error) {
	late, cancel := context.WithTimeout(context.WithoutCancel(ctx), hibernateTimeout)
	defer cancel()
	if !paused {
		defer func() { err = errors.Join(err, w.resumeSandbox(late)) }()
		if err := w.pauseCall(late); err != nil {
			return err
		}
	}
	return w.runsc.Checkpoint(late, w.opts.ID, runsc.CheckpointOptions{ImagePath: incoming.ImageDir()})
}

func (w *Workload) handOut(ctx context.Context, incoming *snapshot.Incoming, dir string) error {
	sealed, err := incoming.Seal(ctx)
	if err != nil {
		return err
	}
	m, err := w.manifest(ctx, sealed)
	if err != nil {
		return err
	}
	return incoming.Export(ctx, dir, m)
}
