package verbs

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// shell is a container that runs a script.
func shell(id, script string) harness.Container {
	return harness.Container{ID: id, Image: "testserver", Args: []string{"sh", "-c", script}}
}

func testRunToTheEnd(t *testing.T, n *node) {
	for _, c := range []struct {
		name, script, input  string
		stdout, stderr       string
		code                 int
		cni                  bool
		flags                []string
		compareOutputByCount int
	}{
		{name: "true", script: "true"},
		{name: "status", script: "exit 7", code: 7},
		{name: "killed", script: "kill -9 $$", code: 137},
		{name: "terminated", script: "kill -15 $$; sleep 10", code: 143},
		{name: "output", script: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
		{name: "network", script: "echo out; exit 3", stdout: "out\n", code: 3, cni: true},
		{name: "large", script: "cat | wc -c", input: strings.Repeat("0123456789abcdef", 1<<16), stdout: "1048576\n"},
		{name: "much-output", script: "head -c 4000000 /dev/zero | tr '\\0' x; exit 5", code: 5, compareOutputByCount: 4000000},
		{name: "null", script: "echo nowhere; exit 4", code: 4, flags: []string{"--null-io"}},
		{name: "environment", script: "echo $KEY; id -u", stdout: "value\n1000\n", flags: []string{"--env", "KEY=value", "--user", "1000"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			container := shell(c.name, c.script)
			container.CNI, container.Flags = c.cni, c.flags
			r := n.run(c.input, container)
			if c.compareOutputByCount > 0 {
				c.stdout, r.stdout = fmt.Sprint(c.compareOutputByCount), fmt.Sprint(len(r.stdout))
			}
			if r.code != c.code || r.stdout != c.stdout || r.stderr != c.stderr {
				t.Errorf("status %d, output %q, errors %q; want %d, %q, %q", r.code, r.stdout, r.stderr, c.code, c.stdout, c.stderr)
			}
		})
	}
	missing := harness.Container{ID: "missing", Image: "testserver", Args: []string{"/no/such/program"}}
	if r := n.run("", missing); r.code == 0 || !strings.Contains(r.stderr, "/no/such/program") {
		t.Errorf("a program that isn't there: status %d, %q", r.code, r.stderr)
	}
}

// The output of `ctr run` goes on through sleeps: each line once, in order.
func testOutputThroughSleep(t *testing.T, n *node) {
	n.imported("testserver")
	p := n.start(append([]string{}, n.RunArgs(harness.Container{ID: "log", Image: "testserver", CNI: true})...)...)
	n.until("the server's start", func() (bool, string) { return p.out.has("ready"), p.errs.String() })
	server := n.server("log")
	want := "ready\n"
	for i := range 6 {
		for _, to := range []string{"stdout", "stderr"} {
			server.get(fmt.Sprintf("/log?line=line-%d&to=%s", i, to))
		}
		want += fmt.Sprintf("line-%d\n", i)
		if i%2 == 1 {
			server.rest()
			n.sleep("log")
		}
	}
	server.get("/log?line=last")
	server.rest()
	n.sleep("log")
	// ctr passes the signal on; it wakes the server, which says bye.
	if err := p.Process.Signal(terminate); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 0 {
		t.Errorf("status %d: %s", code, p.errs)
	}
	if want += "last\nbye\n"; p.out.String() != want {
		t.Errorf("output %q, want %q", p.out, want)
	}
	lines := strings.TrimSuffix(strings.TrimPrefix(want, "ready\n"), "last\nbye\n")
	if errs := said(p.errs.String()); errs != lines {
		t.Errorf("errors %q, want %q", errs, lines)
	}
	n.must("containers", "delete", "log")
}

// Who attaches later sees what is printed then, and the container ends for both.
func testAttach(t *testing.T, n *node) {
	n.imported("testserver")
	c := shell("a", "while read line; do echo got-$line; done; exit 8")
	first := n.start(n.RunArgs(c)...)
	n.until("start", func() (bool, string) { return n.running("a"), first.errs.String() })
	if _, err := fmt.Fprintln(first.in, "one"); err != nil {
		t.Fatal(err)
	}
	n.until("the first line", func() (bool, string) { return first.out.has("got-one"), first.out.String() })
	n.sleep("a")
	if err := first.Process.Kill(); err != nil { // not a signal that ctr would pass on
		t.Fatal(err)
	}
	<-first.done
	n.is("a", "asleep")
	second := n.start("tasks", "attach", "a")
	n.until("the second line", func() (bool, string) {
		if _, err := fmt.Fprintln(second.in, "two"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Wake(n.context(), "a"); err != nil {
			t.Fatal(err)
		}
		return second.out.has("got-two"), second.errs.String()
	})
	n.must("tasks", "kill", "--signal", "SIGKILL", "a")
	second.end(t)
	n.must("containers", "delete", "a") // attach has deleted the task
}

// running says whether containerd has such a task.
func (n *node) running(id string) bool {
	task, err := n.Task(n.context(), id)
	return err == nil && task.State == "RUNNING"
}

// What is written to standard input while the container sleeps wakes it, and is read; so is its end.
func testInputThroughSleep(t *testing.T, n *node) {
	n.imported("testserver")
	p := n.start(n.RunArgs(shell("in", "cat; echo end; exit 6"))...)
	say := func(line string) {
		if _, err := fmt.Fprintln(p.in, line); err != nil {
			t.Fatal(err)
		}
	}
	say("first")
	n.until("the echo", func() (bool, string) { return p.out.has("first\n") && n.running("in"), p.out.String() })
	n.sleep("in")
	say("second")
	n.until("what was said asleep", func() (bool, string) { return p.out.has("second\n"), p.out.String() })
	n.sleep("in")
	if err := p.in.Close(); err != nil {
		t.Fatal(err)
	}
	if code := p.end(t); code != 6 || p.out.String() != "first\nsecond\nend\n" {
		t.Errorf("status %d, output %q, errors %q", code, p.out, p.errs)
	}
	n.must("containers", "delete", "in")
}

// A program that ends as soon as it is awake has run once: it is not restored again, nor started anew.
func testEndsAtOnce(t *testing.T, n *node) {
	n.imported("testserver")
	for i := range 5 {
		id := fmt.Sprint("brief-", i)
		p := n.start(n.RunArgs(shell(id, "cat; echo end; exit 6"))...)
		if _, err := fmt.Fprintln(p.in, "first"); err != nil {
			t.Fatal(err)
		}
		n.until("the echo", func() (bool, string) { return p.out.has("first\n") && n.running(id), p.out.String() })
		n.sleep(id)
		if err := p.in.Close(); err != nil {
			t.Fatal(err)
		}
		_, _ = n.Wake(n.context(), id) // it may have ended before the answer
		if code := p.end(t); code != 6 || p.out.String() != "first\nend\n" {
			t.Errorf("round %d: status %d, output %q, errors %q", i, code, p.out, p.errs)
		}
		n.must("containers", "delete", id)
	}
}

// An id is free again as soon as its container is gone.
func testAgain(t *testing.T, n *node) {
	for i := range 5 {
		if r := n.run("", shell("again", fmt.Sprintf("exit %d", i))); r.code != i {
			t.Fatalf("run %d: status %d: %s", i, r.code, r.stderr)
		}
	}
}
