package verbs

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// topics are what `ctr events` has told of tasks so far, without "/tasks/", in order.
func topics(p *process) []string {
	var all []string
	for line := range strings.Lines(p.out.String()) {
		for _, field := range strings.Fields(line) {
			if topic, ok := strings.CutPrefix(field, "/tasks/"); ok {
				all = append(all, topic)
			}
		}
	}
	return all
}

// Events come in order, and sleep makes none.
func testEvents(t *testing.T, n *node) {
	n.imported("testserver")
	p := n.start("events")
	defer p.stop()
	n.until("ctr listens", func() (bool, string) {
		n.must("namespaces", "label", n.Name, "probe=1") // an event of its own, until one is seen
		return p.out.has("/namespaces/update"), p.out.String()
	})
	n.serve(harness.Container{ID: "a"}).rest()
	n.sleep("a")
	n.exec("", "a", "x", "exit 4")
	n.sleep("a")
	n.must("tasks", "pause", "a")
	n.must("tasks", "resume", "a")
	n.sleep("a")
	n.must("tasks", "delete", "--force", "a")
	want := []string{"create", "start", "exec-added", "exec-started", "exit", "paused", "resumed", "exit", "delete"}
	n.until("all events", func() (bool, string) { return len(topics(p)) >= len(want), strings.Join(topics(p), " ") })
	if got := topics(p); !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	if out := p.out.String(); !strings.Contains(out, `"exit_status":4`) || !strings.Contains(out, `"exit_status":137`) {
		t.Errorf("exit statuses are missing:\n%s", out)
	}
}

// Each OCI hook runs once, whatever sleeps come between, and is told the holder's pid.
func testHooks(t *testing.T, n *node) {
	record := filepath.Join(n.Dir, "hooks")
	if err := n.RunBundle(n.context(), n.hooked("hooked", record)); err != nil {
		t.Fatal(err)
	}
	task, err := n.Task(n.context(), "hooked")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n.sleep("hooked")
		if r := n.exec("", "hooked", "x", "true"); r.code != 0 {
			t.Fatal(r.stderr)
		}
	}
	n.sleep("hooked")
	n.must("tasks", "delete", "--force", "hooked")
	n.must("containers", "delete", "hooked")
	type call struct {
		Hook  string
		State specs.State
	}
	var calls []call
	data, err := os.ReadFile(record)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		var c call
		name, state, _ := strings.Cut(line, " ")
		if err := json.Unmarshal([]byte(state), &c.State); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		c.Hook = name
		calls = append(calls, c)
	}
	want := []specs.ContainerState{specs.StateCreated, specs.StateCreated, specs.StateRunning, specs.StateStopped}
	names := []string{"prestart", "createRuntime", "poststart", "poststop"}
	if len(calls) != len(want) {
		t.Fatalf("hooks were called:\n%s", data)
	}
	for i, c := range calls {
		if c.Hook != names[i] || c.State.Status != want[i] || c.State.ID != "hooked" || c.State.Pid != task.Pid {
			t.Errorf("call %d: %s with %+v; want %s, %s, pid %d", i, c.Hook, c.State, names[i], want[i], task.Pid)
		}
	}
}

// hooked is a bundle with hooks that write to record.
func (n *node) hooked(id, record string) harness.Bundle {
	n.t.Helper()
	hook := func(name string) []specs.Hook {
		script := "{ printf '" + name + " '; tr -d '\\n'; echo; } >> " + record
		return []specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", script}}}
	}
	c := harness.Container{ID: id, Image: "testserver", Args: []string{"sh", "-c", "while :; do sleep 1; done"}}
	b, err := n.NewBundle(n.context(), c, func(spec *specs.Spec) {
		spec.Hooks = &specs.Hooks{
			//lint:ignore SA1019 prestart is deprecated, and still what older engines send
			Prestart: hook("prestart"), CreateRuntime: hook("createRuntime"), Poststart: hook("poststart"), Poststop: hook("poststop"),
		}
	})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := n.RemoveBundle(n.context(), b); err != nil {
			n.t.Error(err)
		}
	})
	return b
}
