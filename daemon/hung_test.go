package daemon_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/admission"
)

// TestHungShimIsHeldOutAndTold: clients of a shim that hangs are held, asked for again and again, and answered when it goes on;
// that is told meanwhile, and nobody else's wake waits for it.
func TestHungShimIsHeldOutAndTold(t *testing.T) {
	w := &ward{total: 100 * taken, gate: make(chan struct{})}
	close(w.gate)
	n := newNode(t)
	n.change = func(o *daemon.Options) {
		o.Available, o.Wakes = w.available, admission.Limits{Wakes: 1}
		o.SilentAfter, o.WakeTimeout = 20*time.Millisecond, 300*time.Millisecond
	}
	n.run()
	hung, address := w.sleeper(n, "default", "hung")
	eventually(t, "it is known to sleep", func() bool { return n.list()["hung"].GetStatus().GetState() == "asleep" })
	hung.Hang(true)
	clients := hold(t, address, 20)
	eventually(t, "its silence is told", func() bool { return strings.Contains(n.log.String(), "the shim gives no sign of the wake") })
	metric(t, n, "hibernate_shim_silent_total 1")
	_, other := w.sleeper(n, "default", "other")
	if err := roundTrip(other); err != nil {
		t.Error("another one:", err)
	}
	eventually(t, "it is asked again", func() bool {
		return len(hung.Wakes()) >= 3 && strings.Contains(n.log.String(), "the wake failed and is tried again")
	})
	hung.Hang(false)
	answered(t, clients)
}

// TestHungShimEndsAtTheLimit: the workload's own, which may be shorter than the node's.
func TestHungShimEndsAtTheLimit(t *testing.T) {
	w := &ward{total: 100 * taken, gate: make(chan struct{})}
	close(w.gate)
	n := newNode(t)
	n.change = func(o *daemon.Options) { o.Available = w.available }
	n.run()
	hung, address := w.sleeper(n, "default", "hung")
	hung.Update(func(s *shimv1.StatusResponse, _ *shimv1.ActivityResponse) { s.Limits = &shimv1.Limits{HoldMs: 300} })
	eventually(t, "its limit is known", func() bool { return n.list()["hung"].GetStatus().GetLimits().GetHoldMs() == 300 })
	hung.Hang(true)
	reset(t, hold(t, address, 3))
	metric(t, n, `hibernate_clients_refused_total{answer="reset",reason="hold-timeout"} 3`)
	hung.Hang(false)
	eventually(t, "it serves again", func() bool { return roundTrip(address) == nil })
}

// TestBrokenActivityKeepsAwake: a shim that answers, but can't measure, keeps its workload awake, and that is an alarm.
func TestBrokenActivityKeepsAwake(t *testing.T) {
	n := newNode(t)
	n.change = func(o *daemon.Options) { o.AlarmAfter = 50 * time.Millisecond }
	n.run()
	w := &ward{}
	shim, _ := w.sleeper(n, "default", "redis")
	shim.Unmeasured(errors.New("no such table"))
	shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { a.IdleTimeoutMs = 100 })
	shim.State("awake")
	metric(t, n, "hibernate_activity_broken 1")
	if !strings.Contains(n.log.String(), "activity can't be measured") || !strings.Contains(n.log.String(), "no such table") {
		t.Error("the log doesn't tell")
	}
	if got := shim.Hibernations(); len(got) > 0 {
		t.Errorf("it was put to sleep: %v", got)
	}
	why, err := n.api().WhyAwake(t.Context(), &daemonv1.WhyAwakeRequest{Namespace: "default", Id: "redis"})
	told := false
	for _, r := range why.GetReasons() {
		told = told || r.GetCode() == "meter"
	}
	if err != nil || !told {
		t.Errorf("why-awake %v, %v", why, err)
	}
	shim.Unmeasured(nil)
	metric(t, n, "hibernate_activity_broken 0")
	eventually(t, "it sleeps", func() bool { return n.list()["redis"].GetStatus().GetState() == "asleep" })
}
