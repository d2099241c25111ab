package conformance

import (
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
)

func TestKill(t *testing.T) {
	n := newNode(t, nil)
	trap := func(signal string) []string {
		return []string{"sh", "-c", "trap 'exit 50' " + signal + "; echo ready; while :; do sleep 0.05; done"}
	}
	moods(t, func(t *testing.T, m mood) {
		for name, signal := range map[string]syscall.Signal{"HUP": 1, "INT": 2, "USR1": 10, "TERM": 15} {
			check(t, name+" ends", func(t *testing.T) {
				c := n.run(t, m, options{args: sleeper})
				c.nap()
				c.kill(signal)
				c.wantExit("", 128+uint32(signal))
			})
			check(t, name+" is caught", func(t *testing.T) {
				c := n.run(t, m, options{args: trap(name)})
				c.hear("ready\n")
				c.nap()
				c.kill(signal)
				c.wantExit("", 50)
			})
		}
		check(t, "KILL", func(t *testing.T) {
			c := n.run(t, m, options{args: trap("TERM")})
			c.nap()
			c.end()
		})
		check(t, "a paused container gets it when it goes on", func(t *testing.T) {
			c := n.run(t, m, options{args: trap("TERM")})
			c.hear("ready\n")
			c.nap()
			if _, err := c.task.Pause(c.ctx(), &taskapi.PauseRequest{ID: c.id}); err != nil {
				t.Fatalf("Pause: %v", err)
			}
			c.kill(syscall.SIGTERM)
			c.wantStatus(tasktypes.Status_PAUSED)
			if _, err := c.task.Resume(c.ctx(), &taskapi.ResumeRequest{ID: c.id}); err != nil {
				t.Fatalf("Resume: %v", err)
			}
			c.wantExit("", 50)
		})
		check(t, "KILL ends a paused container at once", func(t *testing.T) {
			c := n.run(t, m, options{args: sleeper})
			c.nap()
			if _, err := c.task.Pause(c.ctx(), &taskapi.PauseRequest{ID: c.id}); err != nil {
				t.Fatalf("Pause: %v", err)
			}
			began := time.Now()
			c.kill(syscall.SIGKILL)
			c.wantExit("", 137)
			if took := time.Since(began); took > 2*time.Second {
				t.Fatalf("it took %v", took)
			}
		})
		check(t, "all", func(t *testing.T) {
			c := n.run(t, m, options{args: []string{"sh", "-c", "sleep 1000 & wait"}})
			c.nap()
			if _, err := c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, Signal: 15, All: true}); err != nil {
				t.Fatalf("kill of all: %v", err)
			}
			c.wantExit("", 143)
		})
	})
}
