package sandbox

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// byPacket is the reason of a wake by a packet that the kernel keeps.
const byPacket = "packet"

// held are the reasons of wakes that can wait: the proxy's, whose connections stay where they are meanwhile.
var held = []string{"connection", "dial", byForward}

// Pause stops the container at a user's wish: a paused one never goes to sleep. One that sleeps already is paused as it
// is, without a wake, and nothing wakes it until it is resumed.
func (w *Workload) Pause(ctx context.Context, id string) error {
	c, shared, err := w.pausing(id)
	if err != nil {
		return err
	}
	if shared { // gVisor pauses a sandbox as a whole
		return w.userState(c, lifecycle.Pause)
	}
	if err := w.checkpointEnds(ctx); err != nil {
		return err
	}
	release, err := w.holdLoaded(ctx, c)
	if release == nil {
		return err
	}
	defer release()
	if err := w.userState(c, lifecycle.Pause); err != nil {
		return err
	}
	if err := w.pauseSandbox(ctx, c); err != nil {
		return err
	}
	w.hideFilestore()
	return nil
}

// holdLoaded keeps a workload awake whose memory is all there: runsc pauses no other, and what is told as paused could not be
// started afresh when its memory doesn't come. release is nil when there is nothing to hold: a sleeper was paused, or err says why not.
func (w *Workload) holdLoaded(ctx context.Context, c *Container) (release func(), err error) {
	for {
		if asleep, err := w.pauseSleeper(c); asleep {
			return nil, err
		}
		release, err := w.hold(ctx, "pause")
		if errors.Is(err, ErrBlocked) { // since a moment ago
			continue
		}
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		loading := w.loading != nil
		w.mu.Unlock()
		if !loading {
			return release, nil
		}
		release()
		if err := w.loadEnds(ctx); err != nil {
			return nil, err
		}
	}
}

// pauseSandbox pauses the sandbox, or leaves it running. Both go to their end, whoever leaves: a call that was cut short may
// have paused it all the same. When even that can't be taken back, the container stays paused, for its user to resume.
func (w *Workload) pauseSandbox(ctx context.Context, c *Container) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
	defer cancel()
	err := w.pauseCall(ctx)
	if err == nil {
		return nil
	}
	if e := w.resumeSandbox(ctx); e != nil {
		return errors.Join(err, fmt.Errorf("it may be paused, and can't be resumed now: %w", e))
	}
	return errors.Join(err, w.userState(c, lifecycle.Resume))
}

func (w *Workload) pauseSleeper(c *Container) (asleep bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.state != lifecycle.Asleep && w.state != lifecycle.Blocked {
		return false, nil
	}
	next, err := c.state.Next(lifecycle.Pause)
	if err != nil {
		return true, err
	}
	c.state, w.resumed = next, make(chan struct{})
	w.announce(nil)
	return true, nil
}

// Resume lets a paused container go on. A sleeper sleeps on, unless a packet or a signal waits for it.
func (w *Workload) Resume(ctx context.Context, id string) error {
	c, shared, err := w.pausing(id)
	if err != nil {
		return err
	}
	if shared {
		return w.userState(c, lifecycle.Resume)
	}
	if err := w.checkpointEnds(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	next, err := c.state.Next(lifecycle.Resume)
	asleep, knocked, signals := w.pausedSleeper(), w.knocked, len(w.signals) > 0
	if err == nil && asleep {
		c.state, w.knocked = next, ""
		close(w.resumed)
		w.resumed = nil
		w.announce(nil)
	}
	w.mu.Unlock()
	if err != nil {
		return err
	}
	if asleep {
		return w.wakeForKept(ctx, signals, knocked)
	}
	if err := w.resumeSandbox(context.WithoutCancel(ctx)); err != nil { // one that was cut short may have resumed it
		return err
	}
	if err := w.userState(c, lifecycle.Resume); err != nil {
		return err
	}
	return w.deliverKept(ctx)
}

// wakeForKept wakes a sleeper that was resumed when signals, a packet or input came during the pause.
func (w *Workload) wakeForKept(ctx context.Context, signals bool, knocked string) error {
	if signals {
		release, err := w.hold(ctx, "signal")
		if err != nil {
			return fmt.Errorf("deliver what came during the pause: %w", err)
		}
		defer release()
		return w.deliverKept(ctx)
	}
	switch knocked {
	case byPacket:
		go w.packet(context.WithoutCancel(ctx))
	case byInput:
		w.inputCame()
	}
	return nil
}

// pausing finds a container, and says whether another one of the pod is paused, and so the sandbox.
func (w *Workload) pausing(id string) (c *Container, shared bool, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c, err = w.container(id); err != nil {
		return nil, false, fmt.Errorf("container %s: %w", id, err)
	}
	for _, o := range w.containers {
		shared = shared || o != c && o.state == lifecycle.Paused
	}
	return c, shared, nil
}

func (w *Workload) userState(c *Container, e lifecycle.ContainerEvent) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	next, err := c.state.Next(e)
	if err != nil {
		return err
	}
	c.state = next
	w.announce(nil)
	return nil
}

// pausedSleeper says whether a user has paused a workload that sleeps. The caller holds w.mu.
func (w *Workload) pausedSleeper() bool {
	return (w.state == lifecycle.Asleep || w.state == lifecycle.Blocked) && w.anyPaused()
}

// awaitResume is for a wake of a paused sleeper: a proxy's waits, any other is refused.
func (w *Workload) awaitResume(ctx context.Context, why string, resumed <-chan struct{}) error {
	if !slices.Contains(held, why) {
		return ErrPaused
	}
	select {
	case <-resumed:
		return nil
	case <-w.root().ended:
		return ErrPaused
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
