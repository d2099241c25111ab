package flat

import (
	"fmt"
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

// By default a small snapshot is loaded before it runs, which is as soon, and said of no wake as a fault.
func TestSmallOnesArePlain(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: settings(map[string]string{"flat-from": `"64MiB"`})})
	for mib, flat := range map[int]bool{16: false, 96: true} {
		a := start(t, w, fmt.Sprint("web-", mib), mib, harness.Container{})
		a.sleep()
		a.GoesOn()
		last := a.status().GetLastWake()
		if flat {
			a.loaded()
			last = a.status().GetLastWake()
		}
		if last.GetOutcome() != "restored" || last.GetDetail() != "" || (a.step(last, "load") != nil) != flat {
			t.Errorf("%d MiB: told as %v", mib, last)
		}
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
