package sandbox

import (
	"context"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// watchers tells subscribers of each change. A slow subscriber loses the oldest changes, never the newest.
type watchers struct {
	all map[chan *shimv1.Event]struct{}
}

const watchBacklog = 16

// Watch calls send with the present state and then with each change, until ctx or send ends it.
func (w *Workload) Watch(ctx context.Context, send func(*shimv1.Event) error) error {
	events := make(chan *shimv1.Event, watchBacklog)
	w.mu.Lock()
	w.watchers.all[events] = struct{}{}
	events <- w.event(nil)
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		delete(w.watchers.all, events)
		w.mu.Unlock()
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-events:
			if err := send(e); err != nil {
				return err
			}
			if e.GetState() == "ended" {
				return nil
			}
		}
	}
}

// announce tells every watcher of a change: of state, with the transition that it belongs to, or of what keeps the
// workload awake. The caller holds w.mu.
func (w *Workload) announce(t *shimv1.Transition) {
	e := w.event(t)
	for c := range w.watchers.all {
		select {
		case c <- e:
			continue
		default:
		}
		select {
		case <-c:
		default:
		}
		select {
		case c <- e:
		default:
		}
	}
}

func (w *Workload) event(t *shimv1.Transition) *shimv1.Event {
	return &shimv1.Event{TimeUnixMs: w.opts.Now().UnixMilli(), State: w.state.String(), Transition: t, Status: w.status()}
}
