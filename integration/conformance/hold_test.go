package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"

	"github.com/hibernate-runtime/hibernate/integration/harness"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// newHoldingNode is a node whose runsc waits before a command for as long as the test wants: a transition can be looked
// at in the middle.
func newHoldingNode(t *testing.T, settings map[string]string) *node {
	t.Helper()
	n := newNode(t, settings)
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	script := filepath.Join(n.Dir, "runsc-hold")
	text := fmt.Sprintf(`#!/bin/sh
for last; do :; done
for a; do
	hold=%s/hold-$a-$last
	[ -e "$hold" ] || continue
	: >"$hold.reached"
	while [ -e "$hold" ]; do sleep 0.01; done
done
exec %s "$@"
`, n.Dir, filepath.Join(root, ".tools/runsc"))
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	n.config = filepath.Join(n.Dir, "holding.toml")
	configuration, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		t.Fatal(err)
	}
	held := fmt.Sprintf("runsc = %q\n", script)
	for line := range strings.Lines(string(configuration)) {
		if !strings.HasPrefix(line, "runsc =") {
			held += line
		}
	}
	if err := os.WriteFile(n.config, []byte(held), 0o644); err != nil {
		t.Fatal(err)
	}
	return n
}

// hold makes the container's next runsc command of that name wait. begin starts what leads to it; hold returns when it
// waits. The returned function lets it go on and waits for begin's end.
func (c *container) hold(command string, begin func()) (release func()) {
	c.t.Helper()
	file := filepath.Join(c.n.Dir, "hold-"+command+"-"+c.id)
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		c.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); begin() }()
	eventually(c.t, "runsc "+command, func() bool {
		_, err := os.Stat(file + ".reached")
		return err == nil
	})
	release = func() {
		_ = os.Remove(file)
		<-done
		_ = os.Remove(file + ".reached")
	}
	c.t.Cleanup(release)
	return release
}

// hibernating holds a hibernation in its checkpoint.
func (c *container) hibernating() (release func()) {
	c.t.Helper()
	ctx := c.ctx()
	return c.hold("checkpoint", func() { _, _ = c.shim.Hibernate(ctx, &shimv1.HibernateRequest{Manual: true}) })
}

// waking holds the wake of a sleeper in its restore.
func (c *container) waking() (release func()) {
	c.t.Helper()
	ctx := c.ctx()
	return c.hold("restore", func() { _, _ = c.shim.Wake(ctx, &shimv1.WakeRequest{}) })
}

// atOnce is what an answer may take, however busy the machine: the transitions that it must not wait for have no end meanwhile.
const atOnce = 20 * time.Second

func TestAnswersDuringTransitions(t *testing.T) {
	n := newHoldingNode(t, nil)
	c := n.run(t, mood{}, options{args: sleeper})
	release := c.hibernating()
	answers(t, c, "hibernating")
	release()
	if s := c.workload(); s != "asleep" {
		t.Fatalf("it is %s after all", s)
	}
	release = c.waking()
	answers(t, c, "waking")
	release()
	c.end()
}

func answers(t *testing.T, c *container, state string) {
	if s := c.workload(); s != state {
		t.Fatalf("it is %s, not %s", s, state)
	}
	for name, call := range map[string]func() error{
		"State":   func() error { _, err := c.task.State(c.ctx(), &taskapi.StateRequest{ID: c.id}); return err },
		"Connect": func() error { _, err := c.task.Connect(c.ctx(), &taskapi.ConnectRequest{ID: c.id}); return err },
		"Pids":    func() error { _, err := c.task.Pids(c.ctx(), &taskapi.PidsRequest{ID: c.id}); return err },
		"Stats":   func() error { _, err := c.task.Stats(c.ctx(), &taskapi.StatsRequest{ID: c.id}); return err },
		"Status":  func() error { _, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{}); return err },
		"Activity": func() error {
			_, err := c.shim.Activity(c.ctx(), &shimv1.ActivityRequest{})
			return err
		},
	} {
		check(t, state+"/"+name, func(t *testing.T) {
			for range 50 {
				began := time.Now()
				if err := call(); err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if took := time.Since(began); took > atOnce {
					t.Fatalf("%s took %v", name, took)
				}
			}
		})
	}
}
