package conformance

import (
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
)

func TestEvents(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "order and fields", func(t *testing.T) { order(t, n, m) })
		check(t, "an exit at once comes after the start", func(t *testing.T) {
			c := n.run(t, m, options{args: []string{"true"}})
			c.wantExit("", 0)
			c.delete("")
			c.shutdown()
			c.wantTopics("create", "start", "exit", "delete")
		})
	})
	check(t, "created and deleted", func(t *testing.T) {
		c := n.create(t, mood{}, options{args: sleeper})
		c.delete("")
		c.shutdown()
		c.wantTopics("create", "exit", "delete")
	})
}

func (c *container) wantTopics(want ...string) {
	c.t.Helper()
	if got := c.n.events.topics(c.id); !slices.Equal(got, want) {
		c.t.Fatalf("events\n  %s\nwant\n  %s", strings.Join(got, " "), strings.Join(want, " "))
	}
}

// order makes each kind of event. Sleeps in between make none.
func order(t *testing.T, n *node, m mood) {
	c := n.run(t, m, options{args: sleeper, stdin: true})
	c.nap()
	p := c.exec(execOptions{args: []string{"sh", "-c", "exit 6"}})
	p.run()
	p.wantExit(6)
	c.delete(p.exec)
	c.nap()
	if _, err := c.task.Pause(c.ctx(), &taskapi.PauseRequest{ID: c.id}); err != nil {
		t.Fatalf("Pause: %v", err)
	}
	c.wantStatus(tasktypes.Status_PAUSED)
	if _, err := c.task.Resume(c.ctx(), &taskapi.ResumeRequest{ID: c.id}); err != nil {
		t.Fatalf("Resume: %v", err)
	}
	c.nap()
	c.kill(syscall.SIGTERM)
	c.wantExit("", 143)
	c.delete("")
	c.shutdown()
	c.wantTopics("create", "start", "exec-added", "exec-started", "exit", "paused", "resumed", "exit", "delete")
	all := n.events.of(c.id)
	for _, e := range all {
		if e.namespace != n.Name {
			t.Fatalf("event %s is of namespace %q", e.topic, e.namespace)
		}
	}
	created, _ := all[0].body.(*events.TaskCreate)
	if created.GetPid() != c.pid || created.GetBundle() != c.bundle || len(created.GetRootfs()) != 1 ||
		created.GetIO().GetStdin() != c.stream("stdin") || created.GetIO().GetStdout() != c.stream("stdout") {
		t.Fatalf("create: %v", created)
	}
	if e, _ := all[1].body.(*events.TaskStart); e.GetPid() != c.pid {
		t.Fatalf("start: %v", e)
	}
	if e, _ := all[2].body.(*events.TaskExecAdded); e.GetExecID() != p.exec {
		t.Fatalf("exec-added: %v", e)
	}
	if e, _ := all[3].body.(*events.TaskExecStarted); e.GetExecID() != p.exec || e.GetPid() == 0 {
		t.Fatalf("exec-started: %v", e)
	}
	if e, _ := all[4].body.(*events.TaskExit); e.GetID() != p.exec || e.GetExitStatus() != 6 || !e.GetExitedAt().IsValid() {
		t.Fatalf("exit of the exec: %v", e)
	}
	if e, _ := all[7].body.(*events.TaskExit); e.GetID() != c.id || e.GetExitStatus() != 143 || e.GetPid() != c.pid || !e.GetExitedAt().IsValid() {
		t.Fatalf("exit: %v", e)
	}
	if e, _ := all[8].body.(*events.TaskDelete); e.GetExitStatus() != 143 || e.GetPid() != c.pid || !e.GetExitedAt().IsValid() {
		t.Fatalf("delete: %v", e)
	}
}

func TestOutOfMemory(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "told before the end, which is status 137", func(t *testing.T) {
			c := n.run(t, m, options{stdin: true, memory: 160 << 20, args: []string{"sh", "-c", "read l; exec testserver -mib 600"}})
			for range 2 { // the limit lives through sleep
				c.nap()
				c.rise()
			}
			c.say("go\n")
			c.wantExit("", 137)
			c.delete("")
			c.shutdown()
			c.wantTopics("create", "start", "oom", "exit", "delete")
		})
	})
}
