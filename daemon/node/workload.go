package node

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Workload is one entry of the view. Safe for concurrent use.
type Workload struct {
	Key
	Address string
	Shim    Shim

	vouchers map[any]struct{} // guarded by View.mu
	cancel   context.CancelCauseFunc

	status   atomic.Pointer[shimv1.StatusResponse]
	watched  atomic.Bool
	proxying atomic.Pointer[Proxying]

	mu      sync.Mutex
	err     error         // guarded by mu; why the shim does not answer
	changed chan struct{} // guarded by mu; closed at the next change of state or blockers
}

// Proxying tells how the wake proxy is used for a workload.
type Proxying interface {
	// Use returns the connections held or drained now, and a counter that grows whenever they do something.
	Use() (connections int, progress uint64)
}

// Status is what the shim said last, nil when it never answered. It must not be changed.
func (w *Workload) Status() *shimv1.StatusResponse { return w.status.Load() }

// State is the state that the shim told last, "" when it never answered.
func (w *Workload) State() string { return w.Status().GetState() }

// Watched reports whether changes of state arrive by themselves.
func (w *Workload) Watched() bool { return w.watched.Load() }

// Changed returns a channel that is closed at the next change of state, or of what keeps the
// workload awake.
func (w *Workload) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

// Err says why the shim does not answer; nil when it does.
func (w *Workload) Err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// Answered notes the result of a call: nil, or why there was no answer.
func (w *Workload) Answered(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

// SetProxying tells who proxies for the workload, until undo or the next call.
func (w *Workload) SetProxying(p Proxying) (undo func()) {
	mine := &p
	w.proxying.Store(mine)
	return func() { w.proxying.CompareAndSwap(mine, nil) }
}

// ProxyUse is Proxying.Use of whoever proxies for the workload.
func (w *Workload) ProxyUse() (connections int, progress uint64) {
	if p := w.proxying.Load(); p != nil {
		return (*p).Use()
	}
	return 0, 0
}

// apply takes over what an event tells.
func (w *Workload) apply(event *shimv1.Event) {
	w.watched.Store(true)
	w.Answered(nil)
	before := w.Status()
	next := event.GetStatus()
	if next == nil {
		next = &shimv1.StatusResponse{Namespace: w.Namespace, Id: w.ID}
		if before != nil {
			next = proto.CloneOf(before)
		}
		if next.State != event.GetState() {
			next.State, next.StateSinceUnixMs = event.GetState(), event.GetTimeUnixMs()
		}
	}
	w.status.Store(next)
	if before == nil || before.GetState() != next.GetState() || before.GetStateSinceUnixMs() != next.GetStateSinceUnixMs() ||
		!slices.EqualFunc(before.GetBlockers(), next.GetBlockers(), sameCode) {
		w.signal()
	}
}

func sameCode(a, b *shimv1.Reason) bool { return a.GetCode() == b.GetCode() }

func (w *Workload) signal() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.changed)
	w.changed = make(chan struct{})
}

// The pauses between two attempts to watch a shim.
const (
	watchRetryMin = 50 * time.Millisecond
	watchRetryMax = 5 * time.Second
)

// watch keeps the stream of events open until ctx ends.
func (w *Workload) watch(ctx context.Context, onEvent func(*Workload, *shimv1.Event)) {
	pause := watchRetryMin
	for ctx.Err() == nil {
		err := w.Shim.Watch(ctx, func(event *shimv1.Event) {
			pause = watchRetryMin
			w.apply(event)
			onEvent(w, event)
		})
		w.watched.Store(false)
		if ctx.Err() != nil {
			return
		}
		w.Answered(err)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
		pause = min(pause*2, watchRetryMax)
	}
}
