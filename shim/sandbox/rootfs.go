package sandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A workload's memory knows the files of its image: it is restored only over the same. Nobody tells a shim which image that is, but by a name,
// which may be another image's tomorrow. containerd knows from which layers it has made the container's root file system; the daemon asks it.

// rootfsCall bounds asking. What isn't known by then is not compared, and told.
const rootfsCall = 3 * time.Second

// rootfs is what a container's root file system was made from.
type rootfs struct {
	asking sync.Mutex // one question at a time

	mu      sync.Mutex // guards the fields below
	chainID string     // of the image's layers; "": not known
}

// learnRootfs begins to ask, so that the answer is there when it is needed.
func (w *Workload) learnRootfs(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	ctx, cancel := context.WithTimeout(context.Background(), rootfsCall)
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer cancel()
		_ = w.chainID(ctx)
	}()
	u.Push("question about the image", func(context.Context) error { cancel(); <-done; return nil })
	return nil
}

// chainID is what tells the files of the container's image from others; "" where it can't be found out.
func (w *Workload) chainID(ctx context.Context) string {
	if w.opts.Containerd == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, rootfsCall)
	defer cancel()
	w.lower.asking.Lock()
	defer w.lower.asking.Unlock()
	if known := w.lower.known(); known != "" {
		return known
	}
	a, err := w.askRootfs(ctx, &rightsv1.RootfsRequest{Namespace: w.opts.Namespace, Id: w.opts.ID, Containerd: w.opts.Containerd})
	if err == nil && a.GetProblem() != "" {
		err = fmt.Errorf("%s", a.GetProblem())
	}
	if err != nil {
		w.opts.Log.Debug("what the container's image is", "error", err)
		return ""
	}
	w.lower.mu.Lock()
	defer w.lower.mu.Unlock()
	w.lower.chainID = a.GetChainId()
	return w.lower.chainID
}

func (r *rootfs) known() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.chainID
}

// knownChainID is what is known by now: no commit waits for a daemon. Where nothing is, it is asked for the next time.
func (w *Workload) knownChainID() string {
	known := w.lower.known()
	if known == "" {
		w.background.Go(func() { _ = w.chainID(context.Background()) })
	}
	return known
}

// askRootfs asks the node's daemon.
func (w *Workload) askRootfs(ctx context.Context, r *rightsv1.RootfsRequest) (a *rightsv1.RootfsResponse, err error) {
	err = w.withDaemon(ctx, func(c rightsv1.TTRPCRightsService) error {
		a, err = c.Rootfs(ctx, r)
		return err
	})
	return a, err
}

// imageChanged says how the image of a container differs from the one of a snapshot; "": it doesn't, or nobody knows. Where the layers of both
// are known, names say nothing.
func (w *Workload) imageChanged(ctx context.Context, m snapshot.Manifest) string {
	if len(m.Containers) != 1 {
		return ""
	}
	then := m.Containers[0]
	if then.RootfsKey != "" {
		switch now := w.chainID(ctx); now {
		case "":
			w.opts.Log.Warn("whether the container's image is the one of its snapshot can't be told: neither hibernated nor containerd answers", "sequence", m.Sequence)
		case then.RootfsKey:
			return ""
		default:
			return fmt.Sprintf("the container's image changed: its layers were %s%s, and are %s%s", then.RootfsKey, named(then.Image), now, named(w.image))
		}
	}
	if then.Image != "" && w.image != "" && then.Image != w.image {
		return fmt.Sprintf("the container's image changed: it was %s, and is %s", then.Image, w.image)
	}
	return ""
}

func named(image string) string {
	if image == "" {
		return ""
	}
	return " (" + image + ")"
}

// sameImage is imageChanged as an error.
func (w *Workload) sameImage(ctx context.Context, m snapshot.Manifest) error {
	if why := w.imageChanged(ctx, m); why != "" {
		return fmt.Errorf("%s: %w", why, runsc.ErrSpec)
	}
	return nil
}
