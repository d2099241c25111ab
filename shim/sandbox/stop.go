package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"

	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// With on-stop = hibernate a workload that is asked to stop goes to sleep, and its task ends with status 0. The snapshot stays: the next
// container of its identity, or of its id, goes on from it.

// byStop is the reason of such a sleep.
const byStop = "stop"

// stopTries bounds how often a hibernation is begun that another one's end has undone.
const stopTries = 3

// stopsAsleep says whether a signal has the workload sleep instead of being delivered.
func (w *Workload) stopsAsleep(c *Container, signal syscall.Signal) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.config.OnStop == config.StopHibernate && isStop(signal) && c.state == lifecycle.Running
}

// stop puts the workload to sleep and ends its task, or delivers the signal. It goes on when ctx ends.
func (w *Workload) stop(ctx context.Context, how keptSignal) error {
	done := make(chan error, 1)
	w.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), hibernateTimeout)
		defer cancel()
		done <- w.sleepAndEnd(ctx, how)
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (w *Workload) sleepAndEnd(ctx context.Context, how keptSignal) error {
	w.setStopping(true) // from here on nothing wakes it
	var err error
	for range stopTries {
		if w.endAsleep(how.to) {
			return nil
		}
		if _, err = w.Hibernate(ctx, Ask{Why: byStop, Manual: true, Urgent: true}); err != nil && !errors.Is(err, ErrActivity) {
			break
		}
	}
	if err == nil && w.endAsleep(how.to) {
		return nil
	}
	w.setStopping(false)
	w.mu.Lock()
	over := w.killed || w.state == lifecycle.Ended
	w.mu.Unlock()
	if over {
		return nil
	}
	w.tellStop(how.Signal, err)
	return w.deliver(ctx, how)
}

func (w *Workload) setStopping(on bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopping = on
}

// endAsleep ends the task of a sleeper, whose snapshot stays. It is false where it doesn't sleep.
func (w *Workload) endAsleep(c *Container) bool {
	w.mu.Lock()
	sleeps := (w.state == lifecycle.Asleep || w.state == lifecycle.Blocked) && w.transition == nil
	ended := w.state == lifecycle.Ended
	w.mu.Unlock()
	switch {
	case sleeps && c.member != nil: // the pod's other containers sleep on, and wake again unless they are stopped, too
		w.memberEnded(c, 0, w.opts.Now())
		w.setStopping(!slices.ContainsFunc(w.inside(), w.isLive))
	case sleeps:
		w.end(0, w.opts.Now(), true)
	}
	return sleeps || ended
}

// tellStop says why the signal is delivered.
func (w *Workload) tellStop(signal syscall.Signal, why error) {
	w.opts.Log.Error("the workload could not be put to sleep for its stop: the signal is delivered", "signal", int(signal), "error", why)
	w.mu.Lock()
	defer w.mu.Unlock()
	detail := fmt.Sprintf("signal %d was delivered instead: %v", signal, why)
	if last := w.last.hibernate; last.GetReason() == byStop { // its own record
		w.last.hibernate = proto.CloneOf(last)
		w.last.hibernate.Detail = detail
		w.announce(w.last.hibernate)
		return
	}
	w.last.hibernate = &shimv1.Transition{
		Id: newID(), Kind: "hibernate", Reason: byStop, Outcome: "refused", Detail: detail, StartedUnixMs: w.opts.Now().UnixMilli(),
	}
	w.announce(w.last.hibernate)
}
