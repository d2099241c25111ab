package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// needsOf is what a manifest asks for.
func needsOf(m snapshot.Manifest) eligible.Ability {
	a := eligible.NeedsOf(m)
	a.Runscs = nil // another one's follows the policy
	var then network.Attachment
	if json.Unmarshal(m.Attachment, &then) == nil {
		a.Families, a.Inside = familiesOf(&then), insideOf(&then)
	}
	return a
}

func (w *Workload) offers(known *facts) eligible.Ability {
	a := eligible.Here()
	a.Platform, a.Features = w.config.Platform, known.features
	a.Families, a.Inside = familiesOf(w.attachment), insideOf(w.attachment)
	return a
}

func familiesOf(a *network.Attachment) (list []string) {
	if a == nil {
		return nil
	}
	for _, p := range a.Addresses {
		name := "IPv6"
		if p.Addr().Is4() {
			name = "IPv4"
		}
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// insideOf are the addresses that a sandbox knows.
func insideOf(a *network.Attachment) (list []string) {
	if a == nil {
		return nil
	}
	for _, p := range a.Addresses {
		in, translated := a.Inside[p.Addr()]
		if !translated {
			in = p.Addr()
		}
		list = append(list, in.String())
	}
	slices.Sort(list)
	return list
}

// eligible refuses a snapshot that this node or this container must not restore.
func (w *Workload) eligible(t *transition, s *snapshot.Snapshot) error {
	return t.step("choose", func(ctx context.Context) error { return w.able(ctx, t, s) })
}

func (w *Workload) able(ctx context.Context, t *transition, s *snapshot.Snapshot) error {
	m := s.Manifest()
	if err := w.takeRunsc(ctx, m); err != nil {
		return err
	}
	if err := w.sameMembers(m); err != nil {
		return err
	}
	known, err := w.known(ctx)
	if err != nil {
		return err
	}
	if w.identity == "" { // nobody else's, and its specification was compared at Create
		return nil
	}
	if err := w.sameContainer(t, m); err != nil {
		return err
	}
	if err := w.offers(known).Refuses(needsOf(m)); err != nil {
		return err
	}
	return w.roomFor(t, s.Size())
}

// sameContainer compares what the container is with what it was.
func (w *Workload) sameContainer(t *transition, m snapshot.Manifest) error {
	digest, err := snapshot.SpecDigest(w.spec)
	if err != nil {
		return err
	}
	if digest != rootDigest(m) {
		return fmt.Errorf("the container's specification changed: %v: %w", w.changedFields(m), runsc.ErrSpec)
	}
	if t.record.GetReason() != byStart && m.ID == w.opts.ID && m.Host.Node == w.nodeName() { // it was this very container
		return nil
	}
	return w.sameImage(t.ctx, m)
}

// rootDigest is that of the root's specification: in a pod's manifest SpecDigest is over all containers.
func rootDigest(m snapshot.Manifest) string {
	if len(m.Containers) > 1 {
		return m.Containers[0].SpecDigest
	}
	return m.SpecDigest
}

// roomFor refuses to start what the node has no memory for. A wake of what is here already is the daemon's to admit.
func (w *Workload) roomFor(t *transition, size uint64) error {
	if t.record.GetReason() != byStart {
		return nil
	}
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	_, available := meminfo(data)
	if available <<= 10; available != 0 && available < size+w.config.MinFreeMemory {
		return &eligible.Error{What: "its memory", Theirs: fmt.Sprintf("%d MiB", size>>20), Ours: fmt.Sprintf("%d MiB that are available, of which %d must stay free (min-free-memory)",
			available>>20, w.config.MinFreeMemory>>20)}
	}
	return nil
}
