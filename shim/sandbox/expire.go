package sandbox

import (
	"context"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// EndSleeper ends the container of a workload that has slept since a moment, to the millisecond, and deletes its snapshot, as SIGKILL
// does. ErrPrecondition when it doesn't sleep since then, or somebody is about to wake it; ErrPaused when a user has paused it.
func (w *Workload) EndSleeper(ctx context.Context, since time.Time) error {
	w.mu.Lock()
	c := w.root()
	var err error
	switch {
	case w.killed: // it ends already
	case c.state == lifecycle.Paused:
		err = ErrPaused
	case w.state != lifecycle.Asleep || w.transition != nil || w.since.UnixMilli() != since.UnixMilli():
		err = fmt.Errorf("%w: it has not slept without a break since %s", ErrPrecondition, since.UTC().Format(time.RFC3339))
	default:
		w.killed = true // from here on no wake begins
		w.background.Go(w.endByKill)
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
