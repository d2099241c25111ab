package flat

import (
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Memory is the same after wakes, whatever is read while it comes.
func TestCycles(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(nil)})
	a := start(t, w, "web", 96, harness.Container{})
	for range 4 {
		a.sleep()
		a.GoesOn()
		a.loaded()
		a.GoesOn()
	}
}

// A small limit of memory holds: what the sidecar needs fits beside the workload.
func TestSmallLimit(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(nil)})
	a := start(t, w, "web", 48, harness.Container{Flags: []string{"--memory-limit", "134217728"}})
	for range 2 {
		a.sleep()
		a.GoesOn()
		a.loaded()
		a.GoesOn()
	}
}

// With verify = before a bad chunk is found before the sandbox runs.
func TestVerifyBefore(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{"verify": `"before"`})})
	a := start(t, w, "web", 8, harness.Container{})
	a.sleep()
	a.GoesOn()
	a.loaded()
	a.sleep()
	a.flip("pages.img", a.size("pages.img")-1)
	a.IsNew()
	last := a.status().GetLastWake()
	if last.GetOutcome() != "cold-started" || a.step(last, "restore") != nil {
		t.Errorf("told as %v", last)
	}
}
