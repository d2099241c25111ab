package flat

import (
	"math/rand/v2"
	"syscall"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Whenever the sidecar is killed, the workload goes on as it was, or begins afresh and says why; it is never anything between, and
// never without an answer.
func TestSidecarKilledAtAnyMoment(t *testing.T) {
	n, seed := number(t, "FLAT_MOMENTS", 10), uint64(number(t, "FLAT_SEED", 1))
	t.Logf("FLAT_SEED=%d", seed)
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(nil)})
	a := start(t, w, "web", 96, harness.Container{})
	r := rand.New(rand.NewPCG(seed, 2))
	outcomes := map[string]int{}
	for range n {
		a.sleep()
		woken := make(chan error, 1)
		go func() {
			_, err := w.Wake(a.ctx(), a.ID)
			woken <- err
		}()
		moment := time.Duration(r.IntN(150)) * time.Millisecond
		a.eventually("the sidecar has begun", func() bool {
			pids := a.sidecars()
			if len(pids) == 1 {
				time.Sleep(moment) // somewhere from its beginning to after its end
				_ = syscall.Kill(pids[0], syscall.SIGKILL)
			}
			return len(pids) == 1
		})
		a.must(<-woken)
		var last *shimv1.Transition
		a.eventually("all is loaded, or it is known that it won't be", func() bool {
			last = a.status().GetLastWake()
			return a.status().GetState() == "awake" && (last.GetOutcome() != "restored" || last.GetDetail() != "" || a.step(last, "load") != nil)
		})
		outcomes[last.GetOutcome()]++
		switch last.GetOutcome() {
		case "restored":
			a.GoesOn()
		case "cold-started":
			a.lostBy("the sidecar ended")
			a.IsNew()
		default:
			t.Fatalf("killed %v after it began: told as %v", moment, last)
		}
		a.noneLeft()
	}
	t.Logf("outcomes: %v", outcomes)
}
