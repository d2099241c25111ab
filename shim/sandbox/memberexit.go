package sandbox

import (
	"context"
	"errors"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/protobuf"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// watchMember learns the end of a member's init from the sandbox, which is told by no process of the host's.
func (w *Workload) watchMember(c *Container, generation int) {
	for {
		status, err := w.runsc.Wait(context.Background(), w.opts.ID, c.ID)
		switch {
		case err == nil:
			w.memberExited(c, generation, uint32(status))
			return
		case errors.Is(err, runsc.ErrNotFound): // it had ended when it was checkpointed
			w.opts.Log.Warn("a container's end was not seen", "container", c.ID, "error", err)
			w.memberExited(c, generation, failedStatus)
			return
		case !w.isCurrent(generation):
			return
		}
		w.opts.Log.Debug("wait for a container's end", "container", c.ID, "error", err)
		time.Sleep(waitAgain)
	}
}

// waitAgain is between two questions to a sandbox that doesn't answer, and so has ended, or is about to.
const waitAgain = 100 * time.Millisecond

// memberExited is told the end of a member's init. A hibernation under way is undone for it; one that has committed before it knew
// makes it a ghost.
func (w *Workload) memberExited(c *Container, generation int, status uint32) {
	at := w.opts.Now()
	w.mu.Lock()
	t, hibernating := w.transition, w.state == lifecycle.Hibernating
	if generation != w.generation {
		w.mu.Unlock()
		return
	}
	w.mu.Unlock()
	if t != nil {
		if hibernating {
			t.cancel(ErrMemberExited)
		}
		<-t.done
	}
	w.mu.Lock()
	awake := w.state == lifecycle.Awake && generation == w.generation && !w.expected
	if awake {
		w.changing++
	}
	ended := w.state == lifecycle.Ended
	w.mu.Unlock()
	if ended {
		return
	}
	w.memberEnded(c, status, at)
	if !awake {
		return
	}
	defer w.changeEnds()
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	if err := w.takeOut(ctx, c); err != nil {
		w.opts.Log.Error("a container that has ended could not be taken out of its sandbox", "container", c.ID, "error", err)
	}
}

// ErrMemberExited: a container of the pod ended during a hibernation.
var ErrMemberExited = errors.New("a container of the pod ended")

// takeOut has the sandbox, which is awake, forget a member.
func (w *Workload) takeOut(ctx context.Context, c *Container) error {
	nameFilestore(c.member.rootfs(), w.opts.ID) // it has the sandbox's name
	err := w.runsc.Delete(ctx, c.ID, true)
	return errors.Join(err, w.clearMember(c))
}

// clearMember removes what is left of a member whose sandbox has ended or has forgotten it.
func (w *Workload) clearMember(c *Container) error {
	err := w.clearTraces(c)
	w.mu.Lock()
	c.member.inside = false
	w.joined = slices.DeleteFunc(slices.Clone(w.joined), func(o *Container) bool { return o == c })
	deleted := c.state == lifecycle.Deleted
	select {
	case <-c.member.left:
	default:
		if !c.live() { // else it may join again
			close(c.member.left)
		}
	}
	w.mu.Unlock()
	if deleted { // a ghost
		err = errors.Join(err, w.removeMember(c))
	}
	return err
}

// clearTraces removes runsc's files of a member, and ends what serves its files.
func (w *Workload) clearTraces(c *Container) error {
	_ = killGoferOf(w.runsc.Root, c.ID, w.opts.ID) // it ends by itself, by and by
	return errors.Join(removeMemberTraces(w.runsc.Root, c.ID, w.opts.ID), removeFilestores(c.member.rootfs()))
}

// memberEnded records the end of a member, once, and tells containerd.
func (w *Workload) memberEnded(c *Container, status uint32, at time.Time) {
	w.mu.Lock()
	next, err := c.state.Next(lifecycle.Exit)
	if err != nil {
		w.mu.Unlock()
		return
	}
	c.state, c.exit = next, Exit{Status: status, At: at}
	starting := c.starting
	if !c.member.inside {
		close(c.member.left)
	}
	execs := make([]*Exec, 0, len(c.execs))
	for _, e := range c.execs {
		execs = append(execs, e)
	}
	w.announce(nil)
	w.mu.Unlock()
	for _, e := range execs {
		w.execEnded(c, e, killedStatus)
	}
	c.letGo = letGo(c.relay)
	if starting != nil { // the end is told after the start
		<-starting
	}
	w.opts.Publish(runtime.TaskExitEventTopic, &events.TaskExit{
		ContainerID: c.ID, ID: c.ID, Pid: uint32(w.holder.Pid), ExitStatus: status, ExitedAt: protobuf.ToTimestamp(at),
	})
	close(c.ended)
}

// endMembers ends all members with their sandbox, which is gone; starved: since the kernel ended it for want of memory.
func (w *Workload) endMembers(at time.Time, starved bool) {
	w.mu.Lock()
	all := append([]*Container{}, w.members()...)
	w.mu.Unlock()
	var ending sync.WaitGroup
	for _, c := range all {
		ending.Go(func() {
			w.mu.Lock()
			live, started := c.live(), c.member.inside
			w.mu.Unlock()
			if starved && live && started {
				w.opts.Publish(runtime.TaskOOMEventTopic, &events.TaskOOM{ContainerID: c.ID})
			}
			w.memberEnded(c, killedStatus, at)
			if err := w.clearMember(c); err != nil {
				w.opts.Log.Error("clean up", "container", c.ID, "error", err)
			}
		})
	}
	ending.Wait()
}

// killMember ends one member. A sleeper sleeps on: what is ended is a ghost.
func (w *Workload) killMember(ctx context.Context, c *Container) error {
	for {
		w.mu.Lock()
		t, state, inside := w.transition, w.state, c.member.inside
		if t != nil && state == lifecycle.Hibernating && !t.firm {
			t.cancel(ErrMemberExited)
		}
		w.mu.Unlock()
		switch {
		case t != nil:
			if _, err := t.result(ctx); ctx.Err() != nil {
				return err
			}
			continue
		case !inside || state == lifecycle.Asleep || state == lifecycle.Blocked:
			w.memberEnded(c, killedStatus, w.opts.Now())
			return nil
		}
		break
	}
	err := w.runsc.Kill(ctx, c.ID, runsc.KillOptions{Signal: syscall.SIGKILL, All: true})
	if err != nil && !errors.Is(err, runsc.ErrNotRunning) && !errors.Is(err, runsc.ErrNotFound) {
		w.opts.Log.Warn("kill", "container", c.ID, "error", err)
	}
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(killGrace):
		return errors.Join(errors.New("the container was sent SIGKILL, and its sandbox does not tell of its end: kill the pod's sandbox"), err)
	}
}

// restoreMembers restores what is inside beside the root, which was restored before: with the last one all of the sandbox runs.
func (w *Workload) restoreMembers(ctx context.Context, imagePath string) error {
	for _, c := range w.inside() {
		if err := w.runsc.RestoreJoined(ctx, c.ID, imagePath, runsc.JoinOptions{IO: c.io(), Runner: w.bornRunner()}); err != nil {
			return err
		}
	}
	return nil
}

// settleMembers drops the ghosts of a sandbox that was restored a moment ago, and watches the others.
func (w *Workload) settleMembers(ctx context.Context) error {
	w.mu.Lock()
	generation, all := w.generation, w.insideLocked()
	var ghosts, live []*Container
	for _, c := range all {
		if c.live() {
			live = append(live, c)
		} else {
			ghosts = append(ghosts, c)
		}
	}
	w.mu.Unlock()
	var errs []error
	for _, c := range ghosts {
		errs = append(errs, w.takeOut(ctx, c))
	}
	if len(live) > 0 {
		w.scoreMember()
	}
	for _, c := range live {
		go w.watchMember(c, generation)
	}
	return errors.Join(errs...)
}

// startMembersCold starts the members of a pod afresh that could not be restored: those that ran, in the order in which they joined. One that can't be
// started ends, as it would have otherwise.
func (w *Workload) startMembersCold(ctx context.Context) {
	for _, c := range w.inside() {
		w.mu.Lock()
		live := c.live()
		w.mu.Unlock()
		if !live {
			continue
		}
		err := w.runsc.StartJoined(ctx, c.ID, runsc.JoinOptions{IO: c.io(), Runner: w.bornRunner()})
		if err == nil {
			continue
		}
		w.opts.Log.Error("cold start", "container", c.ID, "error", err)
		w.memberEnded(c, failedStatus, w.opts.Now()) // settleMembers takes it out
	}
}
