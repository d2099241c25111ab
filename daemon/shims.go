package daemon

import (
	"context"
	"errors"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// shims implements upload.Shims.
type shims struct {
	list   func() []*node.Workload
	runDir string

	abandoned *abandoned
}

func (s shims) of(namespace, identity string) (all []*node.Workload) {
	for _, w := range s.list() {
		if w.Namespace == namespace && identity != "" && w.Status().GetIdentity() == identity {
			all = append(all, w)
		}
	}
	return all
}

// State asks; the view may not have heard of the last change yet. Of several shims the one that does most counts.
func (s shims) State(ctx context.Context, namespace, identity string) (state string, err error) {
	for _, w := range s.of(namespace, identity) {
		a, err := w.Shim.Activity(ctx)
		if err != nil {
			return "", err
		}
		if now := a.GetState(); state == "" || state == "ended" || state == "asleep" && now != "ended" {
			state = now
		}
	}
	return state, nil
}

// Recorded looks at the shims' records, which go once containerd has had what a dead one left taken down.
func (s shims) Recorded(namespace, identity string) (bool, error) {
	records, err := handover.ListRecords(s.runDir)
	if err != nil {
		return true, err
	}
	return slices.ContainsFunc(records, func(r handover.Record) bool { return r.Namespace == namespace && r.Identity == identity }), nil
}

// Fence ends the copies under epoch, or one before. found: there is a shim, and it has an answer.
func (s shims) Fence(ctx context.Context, namespace, identity string, epoch uint64, reason string) (found bool, err error) {
	for _, w := range s.of(namespace, identity) {
		_, ferr := w.Shim.Fence(ctx, &shimv1.FenceRequest{Reason: reason, Epoch: epoch})
		if errors.Is(ferr, errdefs.ErrFailedPrecondition) { // it runs under a higher one
			ferr = nil
		}
		found, err = true, errors.Join(err, ferr)
	}
	left, lerr := s.abandoned.end(ctx, func(r handover.Record) bool { return r.Namespace == namespace && r.Identity == identity })
	return found || left > 0, errors.Join(err, lerr)
}
