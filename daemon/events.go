package daemon

import (
	"log/slog"
	"sync"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/metrics"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// events tells the log and the metrics what the shims report, each transition once.
type events struct {
	metrics *metrics.Metrics
	log     *slog.Logger
	started time.Time // of this daemon: what began before is another's to tell

	mu   sync.Mutex
	told map[*node.Workload]told // guarded by mu
}

// told is the newest of a workload that was told.
type told struct {
	state string
	ids   map[string]string // of the last transition, by kind
}

func newEvents(m *metrics.Metrics, log *slog.Logger) *events {
	return &events{metrics: m, log: log, started: time.Now(), told: make(map[*node.Workload]told)}
}

// on takes an event. What the first of a workload tells of the time before this daemon is noted, and counts nothing.
func (e *events) on(w *node.Workload, event *shimv1.Event) {
	before, after, fresh := e.note(w, event)
	if before != after {
		e.log.Info("state", "namespace", w.Namespace, "id", w.ID, "state", after, "before", before)
	}
	for _, transition := range fresh {
		e.metrics.Transition(transition)
		e.log.Info(transition.GetKind(), "namespace", w.Namespace, "id", w.ID, "wake_id", transition.GetId(),
			"reason", transition.GetReason(), "outcome", transition.GetOutcome(), "detail", transition.GetDetail(),
			"ms", transition.GetTotalMs())
	}
}

// note updates what was told, and returns what is new. A stream that broke may have missed a transition; the status
// that begins the next one still has the last of each kind.
func (e *events) note(w *node.Workload, event *shimv1.Event) (before, after string, fresh []*shimv1.Transition) {
	e.mu.Lock()
	defer e.mu.Unlock()
	last, known := e.told[w]
	if !known {
		last.ids = make(map[string]string)
	}
	status := event.GetStatus()
	for _, t := range []*shimv1.Transition{event.GetTransition(), status.GetLastHibernate(), status.GetLastWake()} {
		if t.GetOutcome() == "" || last.ids[t.GetKind()] == t.GetId() {
			continue
		}
		last.ids[t.GetKind()] = t.GetId()
		if known || t.GetStartedUnixMs() >= e.started.UnixMilli() { // it may be over before the watch has begun
			fresh = append(fresh, t)
		}
	}
	before, after = last.state, event.GetState()
	last.state = after
	e.told[w] = last
	return before, after, fresh
}

// forget drops what was told of a workload that has left the view.
func (e *events) forget(w *node.Workload) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.told, w)
}
