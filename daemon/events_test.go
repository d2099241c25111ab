package daemon

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/metrics"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

func transition(id, kind, outcome string) *shimv1.Transition {
	return &shimv1.Transition{Id: id, Kind: kind, Outcome: outcome, Reason: "packet", TotalMs: 150}
}

// event tells a state, a transition that just ended (nil), and the last wake as the status has it.
func event(state string, ended, lastWake *shimv1.Transition) *shimv1.Event {
	return &shimv1.Event{State: state, Transition: ended, Status: &shimv1.StatusResponse{State: state, LastWake: lastWake}}
}

func TestTransitionsAreToldOnce(t *testing.T) {
	w1, w2, w3 := transition("1", "wake", "restored"), transition("2", "wake", "restored"), transition("3", "wake", "cold-started")
	for _, test := range []struct {
		name   string
		events []*shimv1.Event
		want   []string // ids of the lines told
	}{
		{"what was before this daemon", []*shimv1.Event{event("awake", nil, w1)}, nil},
		{"one that ends", []*shimv1.Event{event("waking", nil, w1), event("awake", w2, w2)}, []string{"2"}},
		{"one that is told again", []*shimv1.Event{event("waking", nil, w1), event("awake", w2, w2), event("awake", nil, w2)}, []string{"2"}},
		{"one that a broken stream missed", []*shimv1.Event{event("asleep", nil, w1), event("awake", nil, w2)}, []string{"2"}},
		{"one under way", []*shimv1.Event{event("asleep", nil, w1), event("waking", transition("2", "wake", ""), w1)}, nil},
		{"two", []*shimv1.Event{event("asleep", nil, w1), event("awake", w2, w2), event("awake", w3, w3)}, []string{"2", "3"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log bytes.Buffer
			e := newEvents(metrics.New("", func() metrics.Snapshot { return metrics.Snapshot{} }), slog.New(slog.NewTextHandler(&log, nil)), nil)
			w := &node.Workload{Key: node.Key{Namespace: "default", ID: "redis"}}
			for _, event := range test.events {
				e.on(w, event)
			}
			var told []string
			for line := range strings.Lines(log.String()) {
				if _, id, ok := strings.Cut(line, "wake_id="); ok {
					told = append(told, id[:1])
				}
			}
			if strings.Join(told, " ") != strings.Join(test.want, " ") {
				t.Errorf("told %v, want %v\n%s", told, test.want, log.String())
			}
			e.forget(w)
			if len(e.told) != 0 {
				t.Error("something is remembered of a workload that is gone")
			}
		})
	}
}
