package sandbox

import (
	"context"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/v2/core/runtime"

	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// watchMemory tells containerd of each process of the container that the kernel kills for want of memory. The control
// group lives through sleep, and so does the watch. A host that can't be watched is no reason to fail.
func (w *Workload) watchMemory(_ context.Context, _ CreateRequest, u *undo.Stack) error {
	kills, err := w.group.Kills()
	if err == nil {
		w.mu.Lock()
		w.kills = kills // of an earlier container in a group that was there already
		w.mu.Unlock()
		w.stopMemory, err = w.group.WatchKills(func(n uint64) {
			if w.starved(n) {
				w.tellStarved()
			}
		})
	}
	if err != nil {
		w.opts.Log.Warn("want of memory can't be told", "error", err)
		w.stopMemory = func() {}
	}
	u.Push("memory watch", func(context.Context) error { w.stopMemory(); return nil })
	return nil
}

// starved says whether n is more kills than were told, and takes it for told. What happens after the end of the container
// doesn't count.
func (w *Workload) starved(n uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	more := n > w.kills && w.root().state != lifecycle.Stopped && w.root().state != lifecycle.Deleted
	w.kills = max(w.kills, n)
	return more
}

// starvedNow looks whether there are kills that the watch hasn't told of yet.
func (w *Workload) starvedNow() bool {
	if w.group == nil {
		return false
	}
	n, err := w.group.Kills()
	return err == nil && w.starved(n)
}

func (w *Workload) tellStarved() {
	c := w.root()
	w.mu.Lock()
	starting := c.starting
	w.mu.Unlock()
	if starting != nil { // told after the start
		<-starting
	}
	w.opts.Log.Warn("the kernel killed a process of the container for want of memory")
	w.opts.Publish(runtime.TaskOOMEventTopic, &events.TaskOOM{ContainerID: c.ID})
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range w.insideLocked() {
		if m.live() {
			w.opts.Publish(runtime.TaskOOMEventTopic, &events.TaskOOM{ContainerID: m.ID})
		}
	}
}
