package conformance

import (
	"strings"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// probing is a container with a command by which others ask whether it is well. The command would say otherwise.
func probing(n *node, t *testing.T) *container {
	return n.run(t, mood{}, options{args: sleeper, annotations: map[string]string{"probe-exec": "sh -c echo it runs;*"}})
}

var probe = []string{"sh", "-c", "echo it runs; exit 7"}

// A command that only asks whether a sleeper is well is answered without a wake, with its streams and without; all else
// wakes. Awake it runs.
func TestHealthChecksOfASleeper(t *testing.T) {
	n := newNode(t, nil)
	c := probing(n, t)
	asked := func(status uint32, said string) {
		t.Helper()
		for _, quiet := range []bool{false, true} {
			p := c.exec(execOptions{args: probe, quiet: quiet})
			p.run()
			p.wantExit(status)
			c.delete(p.exec)
			if quiet {
				continue
			}
			<-p.out.done
			if got := p.out.text(); !strings.HasPrefix(got, said) {
				t.Errorf("it said %q, not %q", got, said)
			}
		}
	}
	asked(7, "it runs")
	c.sleep()
	asked(0, "asleep: it was well")
	if s := c.workload(); s != "asleep" {
		t.Errorf("asked whether it is well, it is %s", s)
	}
	p := c.exec(execOptions{args: []string{"sh", "-c", "exit 7"}})
	p.run()
	p.wantExit(7)
	c.delete(p.exec)
	asked(7, "it runs")
	c.kill(9)
	c.wantExit("", 137)
	c.delete("")
	c.shutdown()
}

// A workload that can't be restored is not well.
func TestHealthChecksOfABlockedOne(t *testing.T) {
	n := newNode(t, map[string]string{"on-restore-failure": `"block"`})
	c := probing(n, t)
	c.block()
	p := c.exec(execOptions{args: probe})
	p.run()
	p.wantExit(1)
	c.delete(p.exec)
	<-p.out.done
	if got := p.out.text(); !strings.HasPrefix(got, "blocked: ") {
		t.Errorf("it said %q", got)
	}
	c.kill(9)
	c.wantExit("", 137)
	c.delete("")
	c.shutdown()
}

// A health check that runs is no activity, and isn't cut off by a hibernation either.
func TestHealthChecksAreNoActivity(t *testing.T) {
	n := newNode(t, nil)
	c := n.run(t, mood{}, options{args: sleeper, annotations: map[string]string{"probe-exec": "sleep*"}})
	p := c.exec(execOptions{args: sleeper})
	p.run()
	a, err := c.shim.Activity(c.ctx(), &shimv1.ActivityRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range a.GetBlockers() {
		if r.GetCode() == "exec" || r.GetCode() == "probe" {
			t.Errorf("it counts: %v", r)
		}
	}
	if a.GetExecs() != 0 {
		t.Errorf("%d execs count", a.GetExecs())
	}
	if _, err := c.shim.Hibernate(c.ctx(), &shimv1.HibernateRequest{Reason: "test", Manual: true}); err == nil || !strings.Contains(err.Error(), "whether it is well") {
		t.Errorf("hibernated under it: %v", err)
	}
	c.kill(9)
	c.wantExit("", 137)
	p.wantExit(137)
	c.delete(p.exec)
	c.delete("")
	c.shutdown()
}
