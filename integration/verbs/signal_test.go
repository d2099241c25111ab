package verbs

import (
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// trap is a container that answers signals and ends by SIGTERM with a status of its own. It has no network.
func trap(id string, annotations map[string]string) harness.Container {
	c := shell(id, `trap 'echo usr1' USR1; trap 'echo term; exit 3' TERM; echo up; while :; do sleep 0.05; done`)
	c.Annotations = annotations
	return c
}

func testSignals(t *testing.T, n *node) {
	n.imported("testserver")
	exits := map[string]string{"on-stop": "exit"}
	for _, c := range []struct {
		name        string
		annotations map[string]string
		asleep      bool
		cni         bool // ctr takes a signal for the end, and has CNI give the network up first
		signal      string
		code        int
		output      string
		wakes       uint64
	}{
		{name: "term-awake", signal: "SIGTERM", code: 3, output: "up\nterm\n"},
		{name: "term-asleep", asleep: true, signal: "SIGTERM", code: 3, output: "up\nterm\n", wakes: 1},
		{name: "term-awake-cni", cni: true, signal: "SIGTERM", code: 3, output: "up\nterm\n"},
		{name: "term-asleep-cni", cni: true, asleep: true, signal: "SIGTERM", code: 3, output: "up\nterm\n", wakes: 1},
		{name: "exit-awake", annotations: exits, signal: "SIGTERM", code: 3, output: "up\nterm\n"},
		{name: "exit-asleep", annotations: exits, asleep: true, signal: "SIGTERM", code: 143, output: "up\n"},
		{name: "kill-awake", signal: "SIGKILL", code: 137, output: "up\n"},
		{name: "kill-asleep", asleep: true, signal: "SIGKILL", code: 137, output: "up\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			container := trap(c.name, c.annotations)
			container.CNI = c.cni
			p := n.start(n.RunArgs(container)...)
			n.until("start", func() (bool, string) { return p.out.has("up") && n.running(c.name), p.errs.String() })
			if c.asleep {
				n.sleep(c.name)
			}
			began := time.Now()
			n.must("tasks", "kill", "--signal", c.signal, c.name)
			code := p.end(t)
			if code != c.code || p.out.String() != c.output {
				t.Errorf("status %d, output %q; want %d, %q", code, p.out, c.code, c.output)
			}
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("it took %v", took)
			}
			n.must("containers", "delete", c.name)
		})
	}
}

// A signal that a program survives wakes it, and is delivered once; also where ctr has CNI give the network up first.
func testOtherSignals(t *testing.T, n *node) {
	n.imported("testserver")
	for name, cni := range map[string]bool{"without": false, "cni": true} {
		t.Run(name, func(t *testing.T) { otherSignals(t, n.on(t), cni) })
	}
}

func otherSignals(t *testing.T, n *node, cni bool) {
	container := trap("a", nil)
	container.CNI = cni
	p := n.start(n.RunArgs(container)...)
	n.until("start", func() (bool, string) { return p.out.has("up") && n.running("a"), p.errs.String() })
	n.must("tasks", "kill", "--signal", "SIGUSR1", "a")
	n.until("the signal awake", func() (bool, string) { return p.out.has("usr1"), p.out.String() })
	n.sleep("a")
	n.must("tasks", "kill", "--signal", "SIGUSR1", "a")
	n.until("the signal asleep", func() (bool, string) { return p.out.String() == "up\nusr1\nusr1\n", p.out.String() })
	if last := n.status("a").GetLastWake(); last.GetReason() != "signal" || last.GetOutcome() != "restored" {
		t.Errorf("last wake: %v", last)
	}
	if r := n.ctr("", "tasks", "kill", "--signal", "SIGTERM", "--exec-id", "none", "a"); r.code == 0 || !strings.Contains(r.stderr, "not found") {
		t.Errorf("kill of no exec: status %d, %s", r.code, r.stderr)
	}
	n.must("tasks", "kill", "--signal", "SIGKILL", "--all", "a")
	if code := p.end(t); code != 137 {
		t.Errorf("status %d", code)
	}
	n.must("containers", "delete", "a")
}

// Removal of a sleeper wakes nobody.
func testRemove(t *testing.T, n *node) {
	for _, c := range []struct {
		name string
		end  []string // ends it, and leaves no task
	}{
		{"delete-force", []string{"tasks", "delete", "--force", "asleep"}},
		{"rm-force", []string{"tasks", "rm", "--force", "asleep"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			container := trap("asleep", nil)
			container.Detach = true
			if _, err := n.Run(n.context(), container); err != nil {
				t.Fatal(err)
			}
			n.sleep("asleep")
			if r := n.ctr("", "tasks", "delete", "asleep"); r.code == 0 || n.status("asleep").GetState() != "asleep" {
				t.Errorf("a sleeper was deleted without force: %s", r.stderr)
			}
			n.must(c.end...)
			if task, err := n.Task(n.context(), "asleep"); err != nil || task.State != "" {
				t.Errorf("task: %v, %v", task, err)
			}
			n.must("containers", "delete", "asleep")
		})
	}
}

// A container whose id is the beginning of another's is that container, asleep and awake.
func testIDBegins(t *testing.T, n *node) {
	for _, id := range []string{"web", "web-2"} {
		n.detached(shell(id, "while :; do sleep 1; done"))
	}
	n.sleep("web")
	if r := n.exec("", "web-2", "x", "echo here"); r.stdout != "here\n" {
		t.Errorf("exec: %s", r.stderr)
	}
	n.must("tasks", "kill", "--signal", "SIGKILL", "web")
	n.must("tasks", "delete", "web")
	if r := n.exec("", "web-2", "y", "echo here"); r.stdout != "here\n" {
		t.Errorf("exec after the other's end: %s", r.stderr)
	}
}
