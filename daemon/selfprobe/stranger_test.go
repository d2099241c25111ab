package selfprobe

import (
	"testing"
	"testing/synctest"

	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// A stranger that connects to the probe's port doesn't make it hang.
func TestStrangersConnection(t *testing.T) {
	synctest.Test(t, func(*testing.T) {
		w := &workload{ended: make(chan wakeproxy.Drained, 1)}
		w.Drained(wakeproxy.Drained{})
		w.Drained(wakeproxy.Drained{})
	})
}
