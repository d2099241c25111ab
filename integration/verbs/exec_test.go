package verbs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// exec runs a script inside a container.
func (n *node) exec(input, id, name, script string, flags ...string) result {
	n.t.Helper()
	args := append([]string{"tasks", "exec", "--exec-id", name}, flags...)
	return n.ctr(input, append(args, id, "sh", "-c", script)...)
}

func testExec(t *testing.T, n *node) {
	n.serve(harness.Container{ID: "a"})
	big := strings.Repeat("0123456789abcdef", 1<<15)
	for _, asleep := range []bool{false, true} {
		for i, c := range []struct {
			script, input, stdout, stderr string
			code                          int
		}{
			{script: "echo out; echo err >&2", stdout: "out\n", stderr: "err\n"},
			{script: "exit 9", code: 9},
			{script: "kill -9 $$", code: 137},
			{script: "cat", input: big, stdout: big},
			{script: "head -c 300000 /dev/zero | tr '\\0' x", stdout: strings.Repeat("x", 300000)},
		} {
			name := fmt.Sprintf("%t-%d", asleep, i)
			t.Run(name, func(t *testing.T) {
				n := n.on(t)
				if asleep {
					n.sleep("a")
				}
				r := n.exec(c.input, "a", name, c.script)
				if r.code != c.code || r.stdout != c.stdout || r.stderr != c.stderr {
					t.Errorf("status %d, output %.80q, errors %q; want %d, %.80q, %q", r.code, r.stdout, r.stderr, c.code, c.stdout, c.stderr)
				}
				n.is("a", "awake")
				if by := n.status("a").GetLastWake().GetReason(); asleep && by != "exec" {
					t.Errorf("woken by %s", by)
				}
			})
		}
	}
	r := n.ctr("", "tasks", "exec", "--exec-id", "missing", "a", "/no/such/program")
	if r.code == 0 || !strings.Contains(r.stderr, "/no/such/program") {
		t.Errorf("a program that isn't there: status %d, %q", r.code, r.stderr)
	}
	if left := n.status("a").GetContainers()[0].GetExecs(); left != 0 {
		t.Errorf("%d execs are left", left)
	}
}

// A live exec keeps its container awake and says so; one that has ended doesn't.
func testLiveExec(t *testing.T, n *node) {
	s := n.serve(harness.Container{ID: "a"})
	s.rest()
	p := n.start("tasks", "exec", "--exec-id", "live", "a", "sh", "-c", "echo up; cat; echo end")
	n.until("the exec", func() (bool, string) { return p.out.has("up"), p.errs.String() })
	_, err := n.Hibernate(n.context(), "a")
	if err == nil || !strings.Contains(err.Error(), "[exec]") {
		t.Fatalf("hibernation beside a live exec: %v", err)
	}
	if out := n.must("tasks", "list"); strings.Count(out, "RUNNING") != 1 {
		t.Errorf("tasks:\n%s", out)
	}
	if r := n.ctr("", "tasks", "kill", "--signal", "SIGTERM", "--exec-id", "live", "a"); r.code != 0 {
		t.Errorf("kill of the exec: %s", r.stderr)
	}
	if code := p.end(t); code != 143 {
		t.Errorf("the exec's status is %d, want 143", code)
	}
	n.sleep("a")
}

// An exec that has been silent for its time-out no longer keeps its container awake; sleep ends it, as containerd is told.
func testSilentExec(t *testing.T, n *node) {
	n.serve(harness.Container{ID: "a", Annotations: map[string]string{"exec-idle-timeout": "1s"}}).rest()
	p := n.start("tasks", "exec", "--exec-id", "silent", "a", "sh", "-c", "echo up; cat")
	n.until("the exec", func() (bool, string) { return p.out.has("up"), p.errs.String() })
	began := time.Now()
	for time.Since(began) < 1300*time.Millisecond { // longer than the time-out, but not silent
		if _, err := fmt.Fprintln(p.in, "talk"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.Hibernate(n.context(), "a"); err == nil || !strings.Contains(err.Error(), "[exec]") {
			t.Fatalf("hibernation beside a live exec: %v", err)
		}
		time.Sleep(50 * time.Millisecond)
	}
	n.until("sleep", func() (bool, string) {
		_, err := n.Hibernate(n.context(), "a")
		return err == nil, fmt.Sprint(err)
	})
	if code := p.end(t); code != 137 {
		t.Errorf("the exec's status is %d, want 137; %s", code, p.errs)
	}
	shell := n.dial("tasks", "exec", "--tty", "--exec-id", "shell", "a", "sh")
	shell.types(t, "echo wo''rd\n")
	n.shows(shell, "word")
	n.until("sleep beside a silent terminal", func() (bool, string) {
		_, err := n.Hibernate(n.context(), "a")
		return err == nil, fmt.Sprint(err)
	})
	if code := status(t, <-shell.done); code != 137 {
		t.Errorf("the shell's status is %d, want 137", code)
	}
	if r := n.exec("", "a", "after", "ps"); r.code != 0 || strings.Contains(r.stdout, "cat") {
		t.Errorf("after the wake: %s%s", r.stdout, r.stderr)
	}
}

// A detached exec runs on without its ctr, and its end is seen.
func testDetachedExec(t *testing.T, n *node) {
	n.serve(harness.Container{ID: "a"}).rest()
	n.sleep("a")
	// ctr leaves the FIFOs of a detached exec behind; here they go with the world.
	n.must("tasks", "exec", "--detach", "--fifo-dir", n.Dir+"/fifo", "--exec-id", "d", "a", "sh", "-c", "sleep 1; touch /tmp/done")
	if n.status("a").GetContainers()[0].GetExecs() != 1 {
		t.Error("the exec is not counted")
	}
	n.until("the exec's end", func() (bool, string) {
		return n.status("a").GetContainers()[0].GetExecs() == 0, ""
	})
	n.sleep("a")
	if r := n.exec("", "a", "look", "ls /tmp/done"); r.code != 0 {
		t.Errorf("what it did is lost: %s", r.stderr)
	}
}
