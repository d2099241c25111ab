package daemon

import (
	"cmp"
	"log/slog"
	"slices"
	"sync"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	eventlog "github.com/hibernate-runtime/hibernate/daemon/events"
	"github.com/hibernate-runtime/hibernate/daemon/metrics"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// events tells the log and the metrics what the shims report, each transition once.
type events struct {
	metrics *metrics.Metrics
	log     *slog.Logger
	started time.Time     // of this daemon: what began before is another's to tell
	kept    *eventlog.Log // nil: none is kept

	mu   sync.Mutex
	told map[*node.Workload]told // guarded by mu
}

// told is the newest of a workload that was told.
type told struct {
	state string
	ids   map[string]string // of the last transition, by kind
}

func newEvents(m *metrics.Metrics, log *slog.Logger, kept *eventlog.Log) *events {
	return &events{metrics: m, log: log, kept: kept, started: time.Now(), told: make(map[*node.Workload]told)}
}

// on takes an event. What the first of a workload tells of the time before this daemon is noted, and counts nothing.
func (e *events) on(w *node.Workload, event *shimv1.Event) {
	e.keep(w, event)
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
	if after == "ended" && before != "ended" {
		e.append(eventlog.Event{Namespace: w.Namespace, ID: w.ID, Identity: w.Status().GetIdentity(), What: eventlog.Ended})
	}
}

// keep logs what has ended, in the order in which it did. What the log has already it doesn't take again, so what happened while no
// daemon ran is told by the next one, as far as the shim's status has it.
func (e *events) keep(w *node.Workload, event *shimv1.Event) {
	status := event.GetStatus()
	all := []*shimv1.Transition{status.GetLastHibernate(), status.GetLastWake(), event.GetTransition()}
	slices.SortStableFunc(all, func(a, b *shimv1.Transition) int { return cmp.Compare(a.GetStartedUnixMs(), b.GetStartedUnixMs()) })
	for _, t := range all {
		if t.GetOutcome() == "" || t.GetId() == "" {
			continue
		}
		logged := eventlog.Event{
			TimeMs: t.GetStartedUnixMs() + int64(t.GetTotalMs()), Namespace: w.Namespace, ID: w.ID, Identity: w.Status().GetIdentity(),
			What: eventlog.What(t.GetKind(), t.GetOutcome()), Kind: t.GetKind(), Transition: t.GetId(), Reason: t.GetReason(),
			Outcome: t.GetOutcome(), Detail: t.GetDetail(), Ms: t.GetTotalMs(),
		}
		if logged.What == "slept" {
			logged.ImageBytes = w.Status().GetImageBytes()
		}
		e.append(logged)
	}
}

// append logs one. What can't be written is told, and lost.
func (e *events) append(event eventlog.Event) {
	if e.kept == nil {
		return
	}
	if _, err := e.kept.Append(event); err != nil {
		e.log.Error("an event is not logged", "namespace", event.Namespace, "id", event.ID, "what", event.What, "error", err)
	}
}

// left logs that a workload's shim is gone, when the daemon isn't the one that goes.
func (e *events) left(w *node.Workload) {
	detail := ""
	if state := w.State(); state != "ended" {
		detail = "its shim has gone while it was " + cmp.Or(state, "unknown")
	}
	e.append(eventlog.Event{Namespace: w.Namespace, ID: w.ID, Identity: w.Status().GetIdentity(), What: eventlog.Removed, Detail: detail})
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
