package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A workload may begin from the snapshot of a *template*, another workload in its scope that says so, instead of from its image: a warm start. From
// its first start on it is one like any other.

// templateTries bounds how often the template's next snapshot may overtake the copy.
const templateTries = 3

// fromTemplate makes what Start finds asleep, where the container has nothing of its own yet. What a template lacks is told, and on-restore-failure
// decides; one that may not be used, or doesn't fit, is refused.
func (w *Workload) fromTemplate(ctx context.Context, req CreateRequest, u *undo.Stack) error {
	name, sequence, ok := w.config.Restore.Template()
	if !ok || req.Checkpoint != "" {
		return nil
	}
	if _, err := w.local.Head(); !errors.Is(err, snapshot.ErrNoHead) {
		return nil
	}
	identity, err := identityOf(name, w.spec.Annotations)
	if err != nil {
		return err
	}
	if identity == w.identity {
		return fmt.Errorf("restore = %s: that is this workload itself: want auto, or a template: %w", name, ErrPrecondition)
	}
	for try := 1; ; try++ {
		err = w.copyTemplate(ctx, identity, sequence)
		if !errors.Is(err, os.ErrNotExist) || try == templateTries {
			break
		}
	}
	var missing *noTemplateError
	if errors.As(err, &missing) && w.config.OnRestoreFailure == config.RestoreCold {
		w.lose(err.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("restore = %s: %w", w.config.Restore, err)
	}
	u.Push("copy of the template", func(context.Context) error { return w.local.Remove() })
	return nil
}

// noTemplateError: the node has no such snapshot.
type noTemplateError struct{ text string }

func (e *noTemplateError) Error() string { return e.text }

func (w *Workload) copyTemplate(ctx context.Context, identity string, sequence uint64) error {
	found, err := snapshot.Inspect(snapshot.DirFor(w.config.DataDir, w.opts.Namespace, "", identity))
	s := found.Snapshot
	if s == nil {
		s = found.Kept
	}
	switch {
	case err != nil && !errors.Is(err, snapshot.ErrNoHead):
		return fmt.Errorf("the template %s: %w", identity, err)
	case s == nil && found.Problem != nil:
		return &noTemplateError{fmt.Sprintf("the snapshot of the template %s can't be used: %v", identity, found.Problem)}
	case s == nil:
		return &noTemplateError{fmt.Sprintf("the template %s has no snapshot on this node: start it here, and put it to sleep once", identity)}
	case sequence != 0 && s.Sequence() != sequence:
		return &noTemplateError{fmt.Sprintf("the template %s has snapshot %d on this node, and %d is asked for", identity, s.Sequence(), sequence)}
	}
	m := s.Manifest()
	if !m.Template {
		return fmt.Errorf("the workload %s is no template: give it the annotation %stemplate=true, and put it to sleep again: %w", identity,
			config.AnnotationPrefix, ErrPrecondition)
	}
	digest, err := snapshot.SpecDigest(w.spec)
	if err != nil {
		return err
	}
	if digest != m.SpecDigest {
		return fmt.Errorf("the container's specification differs from that of the template %s in %v: %w", identity, w.changedFields(m), ErrPrecondition)
	}
	m.Origin = &snapshot.Origin{Namespace: m.Namespace, ID: m.ID, Identity: m.Identity, Lineage: m.Lineage, Sequence: m.Sequence, Created: m.Created}
	m.ID, m.Identity, m.Template = w.opts.ID, w.identity, false
	m.Epoch, m.Parent, m.Durable = 0, 0, nil
	return w.local.Mint(ctx, s.Image(), m)
}
