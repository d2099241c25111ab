package crash

import (
	"strings"
	"syscall"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

func hasSuffix(s, suffix string) bool { return strings.HasSuffix(s, suffix) }

func inside(path, dir string) bool { return strings.HasPrefix(path, dir+"/") }

// Each way to end a container by force: its status is 137, containerd hears of it, and nothing is left.
func TestKilled(t *testing.T) {
	w := harness.New(t, harness.Options{Daemon: true, Settings: checked})
	for name, c := range map[string]struct {
		asleep bool
		kill   func(a *app)
	}{
		"holder awake":  {false, func(a *app) { a.must(syscall.Kill(a.Holder(), syscall.SIGKILL)) }},
		"holder asleep": {true, func(a *app) { a.must(syscall.Kill(a.Holder(), syscall.SIGKILL)) }},
		"sandbox awake": {false, func(a *app) { a.must(syscall.Kill(a.Sandbox(), syscall.SIGKILL)) }},
		"task awake":    {false, func(a *app) { a.must(w.Kill(a.ctx(), a.ID, "KILL")) }},
		"task asleep":   {true, func(a *app) { a.must(w.Kill(a.ctx(), a.ID, "KILL")) }},
		"task blocked": {true, func(a *app) {
			a.damage("pages.img", flip)
			_, err := w.Wake(a.ctx(), a.ID)
			if err == nil {
				t.Error("a corrupt snapshot woke")
			}
			a.must(w.Kill(a.ctx(), a.ID, "KILL"))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := start(t, w, strings.ReplaceAll(name, " ", "-"), options{
				annotations: map[string]string{"on-restore-failure": "block"},
			})
			events := a.exits()
			if c.asleep {
				a.sleep()
			}
			pid := a.Holder()
			c.kill(a)
			if e := events(); e.status != 137 || e.pid != pid {
				t.Errorf("the event tells of status %d of process %d, want 137 of %d", e.status, e.pid, pid)
			}
			a.ended()
			a.nothingLeft(name)
		})
	}
}
