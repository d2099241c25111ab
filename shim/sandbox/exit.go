package sandbox

import (
	"context"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/protobuf"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/reap"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// killedStatus is the exit status of a process that SIGKILL ended.
const killedStatus = 128 + 9

// sandboxExited is told the end of each sandbox. Only an end that is not our own doing ends the container.
func (w *Workload) sandboxExited(generation int, e reap.Exit) {
	w.mu.Lock()
	if generation != w.generation || w.expected {
		w.mu.Unlock()
		return
	}
	t, standby := w.transition, w.state == lifecycle.Asleep
	w.mu.Unlock()
	if standby { // the snapshot is all of the workload, and the next wake boots another
		w.opts.Log.Warn("the standby has ended by itself", "status", e.Status)
		w.dropStandby(generation)
		return
	}
	if t != nil {
		t.outlive(restoreGrace, func() bool { return w.isCurrent(generation) })
	}
	w.mu.Lock()
	ended := generation == w.generation && !w.expected && w.state == lifecycle.Awake
	w.mu.Unlock()
	if ended && !w.lostMemory() {
		w.containerEnded(uint32(e.Status), e.At)
	}
}

// lostMemory says whether a sandbox has ended since its memory could not be loaded, and has then done what policy says.
func (w *Workload) lostMemory() bool {
	l := w.takeLoading()
	if l == nil {
		return false
	}
	defer close(l.ended) // who waits finds what policy has made of it
	failure, err := l.why()
	if err != nil {
		w.opts.Log.Warn("sidecar", "error", err)
	}
	return failure != nil && w.lost(failure)
}

// restoreGrace is how long a wake may go on whose sandbox has ended.
const restoreGrace = time.Second

// outlive ends a transition whose sandbox has ended by itself. A hibernation is undone. A wake is let come to its own end
// first: a program that ends as soon as it is restored may have done its last work before runsc has told of the restore,
// and must not run again from the same snapshot, or from the start. One that ended before it was restored is made again;
// current then says that the sandbox is another one by now.
func (t *transition) outlive(grace time.Duration, current func() bool) {
	if t.record.GetKind() == "wake" {
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-t.done:
			return
		case <-timer.C:
		}
	}
	if current() {
		t.cancel(ErrExited)
	}
	<-t.done
}

// isCurrent says whether a sandbox is the workload's, and its end not our own doing.
func (w *Workload) isCurrent(generation int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return generation == w.generation && !w.expected
}

// watchHolder ends the container when somebody kills the process that containerd knows as its own.
func (w *Workload) watchHolder() {
	exits := w.opts.Exits.Watch(w.holder.Pid)
	go func() {
		<-exits
		w.mu.Lock()
		c := w.root()
		over := c.state == lifecycle.Stopped || c.state == lifecycle.Deleted
		w.mu.Unlock()
		if over { // it was Delete
			return
		}
		w.opts.Log.Warn("the holder process was killed: the container ends", "pid", w.holder.Pid)
		ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
		defer cancel()
		if err := w.killNow(ctx); err != nil {
			w.opts.Log.Error("kill", "error", err)
		}
	}()
}

// settleTime is how long an exit waits for its streams to end. They end at once where somebody reads them.
const settleTime = 100 * time.Millisecond

// letGo ends the streams of a process that has ended: at once where somebody reads them, else not before the returned
// function is called, so that a containerd which comes back finds what was written last. That function waits.
func letGo(relay *stdio.Relay) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- relay.Finish(ctx) }()
	settled := time.NewTimer(settleTime)
	defer settled.Stop()
	select {
	case err := <-done:
		done <- err
	case <-settled.C:
	}
	return func() error { cancel(); return <-done }
}

// containerEnded records the end of the container, once, frees all that only a live one needs, and tells containerd.
func (w *Workload) containerEnded(status uint32, at time.Time) { w.end(status, at, false) }

// end is containerEnded, which keeps the snapshots where asked to.
func (w *Workload) end(status uint32, at time.Time, keep bool) {
	starved := w.starvedNow() // by what ended it: what follows is our own doing
	w.mu.Lock()
	c := w.root()
	next, err := c.state.Next(lifecycle.Exit)
	if err != nil {
		w.mu.Unlock()
		return
	}
	created := c.state == lifecycle.Created
	keep = keep || created && w.state != lifecycle.Awake && w.export == nil // what an earlier shim left sleeps on
	keep = keep || w.gathering != nil                                       // nothing of it has run yet
	keep = keep || created && w.identity != ""                              // nobody asked whether it may run here
	c.state, c.exit = next, Exit{Status: status, At: at}
	starting, t := c.starting, w.transition
	if err := w.move(lifecycle.End, nil); err != nil {
		w.opts.Log.Error("lifecycle", "error", err)
	}
	execs := make([]*Exec, 0, len(c.execs))
	for _, e := range c.execs {
		execs = append(execs, e)
	}
	w.mu.Unlock()
	if t != nil { // it has nothing to end in any more, and must not use what is freed below
		t.cancel(ErrKilled)
		<-t.done
	}
	w.unwatchPackets()
	for _, e := range execs {
		w.execEnded(c, e, killedStatus)
	}
	ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
	defer cancel()
	w.release(ctx, c, keep)
	w.endMembers(at, starved)
	if starved {
		w.tellStarved()
	}
	if w.stopMemory != nil { // whatever it tells, it tells before the end
		w.stopMemory()
	}
	if starting != nil { // the end is told after the start
		<-starting
	}
	w.opts.Publish(runtime.TaskExitEventTopic, &events.TaskExit{
		ContainerID: c.ID, ID: c.ID, Pid: uint32(w.holder.Pid), ExitStatus: status, ExitedAt: protobuf.ToTimestamp(at),
	})
	close(c.ended)
}

// release frees what a container that has ended no longer needs: its sandbox, its link and, unless keep, its snapshots.
func (w *Workload) release(ctx context.Context, c *Container, keep bool) {
	for _, act := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"sandbox", w.freeSandbox},
		{"network", w.removeLink},
		{"snapshots", func(context.Context) error {
			if keep {
				return w.local.RemoveUnused()
			}
			return w.local.Remove()
		}},
	} {
		if err := act.do(ctx); err != nil {
			w.opts.Log.Error("clean up", "what", act.what, "error", err)
		}
	}
	c.letGo = letGo(c.relay)
}

// removeLink takes the link and the gate out of the pod's namespace, closes the listeners and has whoever waits reset.
func (w *Workload) removeLink(ctx context.Context) error {
	w.unwatchLink()
	w.stopDraining()
	w.dropPassed()
	w.stopVisitors()
	w.gateMu.Lock()
	defer w.gateMu.Unlock()
	if w.removed {
		return nil
	}
	w.removed = true
	for port, f := range w.listeners {
		_ = f.Close()
		delete(w.listeners, port)
	}
	w.opts.Daemon.Ended()
	if w.link == nil {
		return nil
	}
	return w.link.Remove(ctx) // it is closed in the end: checks of it may still be under way
}
