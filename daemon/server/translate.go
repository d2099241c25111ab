package server

import (
	"slices"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/keeper"
)

// idleOf tells a judgement as of now: the clock has run on since it was made.
func idleOf(j keeper.Judgement, now time.Time) *daemonv1.Idle {
	out := &daemonv1.Idle{Mode: string(j.Sample.Mode), TimeoutMs: j.Timeout.Milliseconds(), SleepsInMs: -1}
	if j.Sample.State != idle.Awake {
		return out
	}
	since := max(now.Sub(j.At), 0)
	out.IdleForMs = (j.IdleFor + since).Milliseconds()
	if j.SleepsIn != idle.Never {
		out.SleepsInMs = max(j.SleepsIn-since, 0).Milliseconds()
	}
	return out
}

// reasons puts a judgement into words of the API.
func reasons(j keeper.Judgement) []*shimv1.Reason {
	var out []*shimv1.Reason
	for _, reason := range j.Reasons {
		out = append(out, &shimv1.Reason{Code: string(reason.Code), Detail: reason.Detail})
	}
	if j.Waiting {
		out = append(out, &shimv1.Reason{Code: "queue", Detail: "idle, and waits for its turn: too many hibernate at once"})
	}
	return out
}

func has(j keeper.Judgement, code idle.Code) bool {
	return slices.ContainsFunc(j.Reasons, func(r idle.Reason) bool { return r.Code == code })
}

// blockers are the newest that the shim told.
func blockers(j keeper.Judgement) []*shimv1.Reason {
	var out []*shimv1.Reason
	for _, blocker := range j.Sample.Blockers {
		out = append(out, &shimv1.Reason{Code: string(blocker.Code), Detail: blocker.Detail})
	}
	return out
}
