package crash

import (
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A shim killed while its container sleeps: `delete` cleans up, and the same container started again goes on where it
// was, connections from before included.
func TestShimKilledAsleep(t *testing.T) {
	for name, daemon := range map[string]bool{"with the daemon": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := harness.New(t, harness.Options{Daemon: daemon, Settings: manual})
			a := prepare(t, w, "asleep")
			empty, err := w.Census(a.ctx())
			a.must(err)
			a.start(options{mib: 32})
			old := a.dial()
			a.must(echo(old, "before"))
			a.sleep()
			a.killShim()
			census, err := w.Census(a.ctx())
			a.must(err)
			if left := census.Since(empty); len(left) != 1 || !strings.HasPrefix(left[0], "file: "+w.DataDir()) {
				t.Fatalf("beside the snapshot there is:\n%s", strings.Join(left, "\n"))
			}
			answered := make(chan error, 1)
			go func() { answered <- echo(old, "while nobody is there") }()
			refused := make(chan error, 1)
			go func() { _, err := a.Try("GET", "/"); refused <- err }()
			a.Again()
			a.must(<-answered)
			a.must(<-refused)
			a.GoesOn()
			if outcome, detail := a.lastWake(); outcome != "restored" {
				t.Fatalf("%s: %s", outcome, detail)
			}
			a.must(echo(old, "after"))
			a.sleep()
			a.GoesOn()
		})
	}
}

// A shim killed while its container is awake: the state is lost, and that is told.
func TestShimKilledAwake(t *testing.T) {
	w := harness.New(t, harness.Options{Settings: manual})
	a := start(t, w, "awake", options{})
	for range 2 { // the second time there is an old snapshot that must not come back
		from := int64(len(a.log()))
		a.killShim()
		a.Again()
		a.IsNew()
		a.inLog(from, "ended while it was awake")
		if outcome, detail := a.lastWake(); outcome != "cold-started" {
			t.Fatalf("told as %s (%s)", outcome, detail)
		}
		a.sleep()
		a.GoesOn()
	}
}

// A changed container does not get the old one's state; a created one that is deleted leaves what sleeps alone.
func TestDeleteBeforeStartKeepsTheSleeper(t *testing.T) {
	w := harness.New(t, harness.Options{Settings: manual})
	a := start(t, w, "created", options{})
	a.sleep()
	a.killShim()
	_, err := w.Ctr(a.ctx(), "tasks", "start", "--detach", "--null-io", "--pid-file", "/nowhere/at/all", a.ID) // fails after Create
	if err == nil {
		t.Fatal("a pid file in no directory was written")
	}
	_, err = w.Ctr(a.ctx(), "tasks", "delete", "--force", a.ID)
	a.must(err)
	a.Again()
	a.GoesOn()
}
