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
