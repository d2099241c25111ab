package command

import (
	"context"
	"errors"
	"slices"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// uploadLook is the time between two looks at the uploads.
const uploadLook = 300 * time.Millisecond

// awaitUploads waits until the store has what sleeps, and notes what it won't have.
func (d *drain) awaitUploads(ctx context.Context, all []*drained) {
	sleepers := slices.DeleteFunc(slices.Clone(all), func(w *drained) bool { return !w.sleepsHere() })
	was := make(map[*drained]string)
	for _, w := range sleepers {
		was[w] = w.Detail
	}
	for {
		known, err := askDaemon(ctx, d.runDir, daemonClient.List, &daemonv1.ListRequest{})
		at := make(map[node.Key]*daemonv1.Copies)
		for _, w := range known.GetWorkloads() {
			at[node.Key{Namespace: w.GetStatus().GetNamespace(), ID: w.GetStatus().GetId()}] = w.GetCopies()
		}
		var waiting []*drained
		for _, w := range sleepers {
			why, over := uploadOf(at[w.key()], w.sequence, err)
			switch {
			case over && why == "":
				w.Detail = was[w]
				continue
			case !over:
				waiting = append(waiting, w)
			default:
				w.Outcome = "not-uploaded"
			}
			w.Detail = why
		}
		sleepers = waiting
		if len(sleepers) == 0 {
			return
		}
		select {
		case <-time.After(uploadLook):
		case <-ctx.Done():
			for _, w := range sleepers {
				w.Outcome = "not-uploaded"
			}
			return
		}
	}
}

// sleepsHere is about what was put to sleep on this node, also where it was to be moved.
func (w *drained) sleepsHere() bool {
	return w.Outcome == "slept" || w.Outcome == "asleep" || w.Outcome == "not-moved"
}

// uploadOf says why the store has not got a sleeper's newest snapshot, empty when it has, and whether that is the end.
func uploadOf(c *daemonv1.Copies, sequence uint64, noDaemon error) (why string, over bool) {
	switch {
	case errors.Is(noDaemon, errNoDaemon):
		return daemonWarning(noDaemon), false
	case noDaemon != nil:
		return noDaemon.Error(), false
	case c == nil:
		return "no store is configured, or hibernated doesn't know it", true
	case c.GetFinal():
		return c.GetError(), true
	case c.GetDurableSequence() >= max(sequence, 1) && c.GetLackingUnixMs() == 0:
		return "", true
	case c.GetError() != "":
		return c.GetError(), false
	case c.GetLocalSequence() >= max(sequence, 1) && c.GetLackingUnixMs() == 0: // it was handed over, and is another node's to upload
		return "", true
	}
	return "it is being uploaded", false
}
