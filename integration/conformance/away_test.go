package conformance

import (
	"slices"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/events"
)

// containerd is away: what happens meanwhile is told when it is back, in order and once, and Wait and State know it, too.
func TestEventsWhileContainerdIsAway(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		for _, end := range []struct {
			name   string
			signal syscall.Signal
			status uint32
		}{{"ends by itself", syscall.SIGTERM, 143}, {"killed", syscall.SIGKILL, 137}} {
			check(t, end.name, func(t *testing.T) {
				c := n.run(t, m, options{args: sleeper})
				c.nap()
				eventually(t, "the start is told", func() bool { return slices.Contains(n.events.topics(c.id), "start") })
				n.events.leave()
				p := c.exec(execOptions{args: []string{"sh", "-c", "exit 3"}})
				p.run()
				p.wantExit(3)
				c.nap()
				c.kill(end.signal)
				c.wantExit("", end.status)
				if s := c.state(""); s.GetExitStatus() != end.status || !s.GetExitedAt().IsValid() {
					t.Errorf("State: %v", s)
				}
				n.events.serve(t)
				want := []string{"create", "start", "exec-added", "exec-started", "exit", "exit"}
				eventually(t, "the events that were kept", func() bool { return len(n.events.topics(c.id)) >= len(want) })
				c.delete("")
				c.shutdown()
				c.wantTopics(append(want, "delete")...)
				last, ok := n.events.of(c.id)[5].body.(*events.TaskExit)
				if !ok || last.GetID() != c.id || last.GetExitStatus() != end.status {
					t.Errorf("the end is told as %v", last)
				}
			})
		}
	})
}
