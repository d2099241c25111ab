// Package moment sends data in the very moment in which a workload falls asleep or wakes, and counts every byte.
package moment

import (
	"context"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	answerTimeout = 30 * time.Second // for one answer, a wake included
	sendsInStep   = 10               // at least, in each step
	envFull       = "HIBERNATE_FULL" // "1": five times as many transitions
)

// The steps as the journal names them. "undo" is a hibernation's that somebody's packet ended; "ladder" is climbed after
// the journal's end.
var (
	descent = []string{"guard", "quiesce", "pause", "checkpoint", "verify", "commit", "free", "undo"}
	ascent  = []string{"choose", "boot", "verify", "inner", "claim", "restore", "open", "ladder"}
)

func manual(t *testing.T, daemon bool) *harness.World {
	return harness.New(t, harness.Options{Daemon: daemon, Settings: map[string]string{"mode": `"manual"`}})
}

// With the daemon the gate holds new connections; they are its proxy's afterwards.
func TestEveryStep(t *testing.T) {
	transitions := 200
	if os.Getenv(envFull) == "1" {
		transitions = 1000
	}
	r := newRun(t, manual(t, true))
	r.until(t, transitions, sendsInStep)
	r.finish(t)
}

// Without a daemon the kernel keeps new connections, too.
func TestEveryStepWithoutDaemon(t *testing.T) {
	r := newRun(t, manual(t, false))
	r.until(t, 40, 1)
	r.finish(t)
}

// until goes through rounds until there were so many transitions, and so many sends in each step.
func (r *run) until(t *testing.T, transitions, sends int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(transitions)*2*time.Second)
	defer cancel()
	for n := 0; r.ledger.count() < transitions || len(r.missing(sends)) > 0; n++ {
		r.round(ctx, t, n)
		if t.Failed() {
			r.report(t)
			t.FailNow()
		}
		if ctx.Err() != nil {
			r.report(t)
			t.Fatalf("too few sends in %v", r.missing(sends))
		}
	}
}

// missing are the steps into which too few sends fell.
func (r *run) missing(want int) (steps []string) {
	counts := r.ledger.bySteps()
	for kind, names := range map[string][]string{"hibernate/": descent, "wake/": ascent} {
		for _, name := range names {
			if counts[kind+name] < want {
				steps = append(steps, kind+name)
			}
		}
	}
	slices.Sort(steps)
	return steps
}

func (r *run) report(t *testing.T) {
	t.Logf("%d transitions: %s", r.ledger.count(), table(r.ledger.outcomes()))
	t.Logf("%d sends, by step: %s", len(r.ledger.sends), table(r.ledger.bySteps()))
}
