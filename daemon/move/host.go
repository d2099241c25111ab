package move

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// Puller claims workloads for this node. See upload.Uploader.Pull.
type Puller interface {
	Pull(ctx context.Context, w api.Workload) (right upload.Right, received uint64, err error)
}

// Host takes workloads in that others move here. It implements peer.Host. All fields above the last are required.
type Host struct {
	Ability   func() eligible.Ability
	Available func() (uint64, error) // memory, without what is reserved
	Spare     uint64                 // that must stay free
	Pulls     Puller
	List      func() []*node.Workload
	Log       *slog.Logger

	mu       sync.Mutex
	reserved map[string]reservation // by workload; guarded by mu
}

// reservation is memory that is kept for a workload until it has come, or not in time.
type reservation struct {
	bytes uint64
	until time.Time
}

var _ peer.Host = (*Host)(nil)

// longest a reservation lasts.
const longest = 10 * time.Minute

// Reserved is the memory that is kept, in bytes.
func (h *Host) Reserved() (n uint64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	for name, r := range h.reserved {
		if now.After(r.until) {
			delete(h.reserved, name)
			continue
		}
		n += r.bytes
	}
	return n
}

// Reserve implements peer.Host.
func (h *Host) Reserve(_ context.Context, a peer.Ask) error {
	if err := h.Ability().Refuses(a.Needs); err != nil {
		return fmt.Errorf("%w: %w", peer.ErrRefused, err)
	}
	name := a.Namespace + "/" + a.Identity
	h.release(name)
	free, err := h.Available()
	if err != nil {
		return fmt.Errorf("%w: how much memory is available: %w", peer.ErrUnavailable, err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.reserved {
		free -= min(free, r.bytes)
	}
	if free < a.Bytes+h.Spare {
		return fmt.Errorf("%w: it takes %d MiB of memory, and %d are available here, of which %d must stay free (min-free-memory)", peer.ErrRefused,
			a.Bytes>>20, free>>20, h.Spare>>20)
	}
	if h.reserved == nil {
		h.reserved = make(map[string]reservation)
	}
	h.reserved[name] = reservation{a.Bytes, time.Now().Add(min(a.Wait, longest))}
	return nil
}

func (h *Host) release(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.reserved, name)
}

// Pull implements peer.Host.
func (h *Host) Pull(ctx context.Context, a peer.Ask) (p peer.Pulled, err error) {
	defer h.release(a.Namespace + "/" + a.Identity)
	right, received, err := h.Pulls.Pull(ctx, api.Workload{Namespace: a.Namespace, Identity: a.Identity})
	var identity *peer.IdentityError
	switch {
	case errors.As(err, &identity):
		return p, err
	case err != nil:
		return p, fmt.Errorf("%w: it could not be had: %w", peer.ErrUnavailable, err)
	}
	p = peer.Pulled{Epoch: right.Epoch, Sequence: received}
	h.Log.Info("a workload was moved here", "workload", a.Namespace+"/"+a.Identity, "from", a.Node, "epoch", right.Epoch)
	h.release(a.Namespace + "/" + a.Identity) // its wake takes it
	for _, w := range h.List() {
		if w.Namespace != a.Namespace || w.Status().GetIdentity() != a.Identity || w.State() != "asleep" {
			continue // one that is being started asks by itself
		}
		begun := time.Now()
		if _, err := w.Shim.Wake(ctx, &shimv1.WakeRequest{Reason: "request"}); err != nil {
			p.Detail = fmt.Sprintf("container %s could not be woken: %v", w.Key, err)
			continue
		}
		p.Woken, p.WakeMs = w.Key.String(), time.Since(begun).Milliseconds()
	}
	return p, nil
}
