package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// findCheckpoint looks at the checkpoint that the container shall be restored from at Start, which reads it. What can be
// told now to be unfit is refused now: nobody who asks for a restore wants a cold start.
func (w *Workload) findCheckpoint(ctx context.Context, req CreateRequest, _ *undo.Stack) error {
	if req.Checkpoint == "" {
		return nil
	}
	e, err := snapshot.OpenExport(req.Checkpoint)
	if err != nil {
		return fmt.Errorf("checkpoint: %w: %w", ErrPrecondition, err)
	}
	if m, ok := e.Manifest(); ok {
		if err := w.restorable(ctx, m); err != nil {
			return fmt.Errorf("checkpoint %s: %w: %w", req.Checkpoint, ErrPrecondition, err)
		}
	}
	if err := w.setEarlierAside(); err != nil {
		return err
	}
	w.state, w.export = lifecycle.Asleep, e
	return removeFilestores(w.spec.Root.Path) // copied with the files of a container that was awake
}

// restorable refuses a checkpoint of another runsc, or of another container.
func (w *Workload) restorable(ctx context.Context, m snapshot.Manifest) error {
	if err := w.takeRunsc(ctx, m); err != nil {
		return fmt.Errorf("%w; or give its path by the key runsc, or make the checkpoint again with this one", err)
	}
	digest, err := snapshot.SpecDigest(w.spec)
	if err != nil {
		return err
	}
	if digest != m.SpecDigest {
		return fmt.Errorf("the container's specification differs from that of the checkpoint in %v: %w", w.changedFields(m), runsc.ErrSpec)
	}
	return nil
}

// setEarlierAside keeps what an earlier shim of this container left asleep, since the checkpoint takes its place.
func (w *Workload) setEarlierAside() error {
	if w.state != lifecycle.Asleep {
		return nil
	}
	s, err := w.local.Current()
	if errors.Is(err, snapshot.ErrNone) || errors.Is(err, snapshot.ErrCorrupt) {
		return nil
	}
	if err != nil {
		return err
	}
	return w.local.Quarantine(s, "the container was restored from a checkpoint in its place")
}

// importCheckpoint makes the checkpoint the workload's own snapshot, checked byte by byte, so that Start can wake from it.
func (w *Workload) importCheckpoint(ctx context.Context) error {
	if w.export == nil {
		return nil
	}
	incoming, err := w.local.Begin(ctx)
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	sealed, err := incoming.Import(ctx, w.export)
	if errors.Is(err, snapshot.ErrCorrupt) {
		return fmt.Errorf("checkpoint: %w: %w", ErrPrecondition, err)
	}
	if err != nil {
		return fmt.Errorf("checkpoint: %w", err)
	}
	if m, ok := w.export.Manifest(); ok {
		w.mu.Lock()
		w.ports, w.only4 = slices.Clone(m.Ports), slices.Clone(m.Only4)
		w.mu.Unlock()
	}
	if err := w.commit(ctx, incoming, sealed, nil); err != nil {
		return errors.Join(fmt.Errorf("checkpoint: %w", err), incoming.Discard())
	}
	return nil
}

// mustRestore says whether a wake must not become a cold start: by policy, or since a restore was what was asked for.
func (w *Workload) mustRestore() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config.OnRestoreFailure == config.RestoreBlock || w.export != nil && w.root().state == lifecycle.Created
}
