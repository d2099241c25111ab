package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs/pkg/errgrpc"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// counter counts the lines that it reads; its memory is what is to go on.
var counter = []string{"sh", "-c", "i=0; while read line; do i=$((i+1)); echo $i; done"}

// identified are the options of a counter with an identity, whose stop is a sleep. pairs are further annotations.
func identified(name string, pairs ...string) options {
	o := options{args: counter, stdin: true, annotations: map[string]string{"identity": name, "on-stop": "hibernate", "wake-timeout": "4s"}}
	for i := 0; i < len(pairs); i += 2 {
		o.annotations[pairs[i]] = pairs[i+1]
	}
	return o
}

// counts looks how far a counter has come.
func (c *container) counts(want int) {
	c.t.Helper()
	c.say("\n")
	line := fmt.Sprintf("%d\n", want)
	eventually(c.t, "the count "+line, func() bool { return c.out.text() == line || strings.HasSuffix(c.out.text(), "\n"+line) })
}

// leave stops a container, which puts it to sleep, and deletes it.
func (c *container) leave() {
	c.t.Helper()
	c.kill(syscall.SIGTERM)
	c.wantExit("", 0)
	c.delete("")
	c.shutdown()
}

func (c *container) lastWake() *shimv1.Transition {
	c.t.Helper()
	s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s.GetLastWake()
}

func (c *container) lastSleep() *shimv1.Transition {
	c.t.Helper()
	s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
	if err != nil {
		c.t.Fatal(err)
	}
	return s.GetLastHibernate()
}

// began looks how a container was started.
func (c *container) began(outcome string, words ...string) {
	c.t.Helper()
	wake := c.lastWake()
	if wake.GetOutcome() != outcome {
		c.t.Fatalf("it was started as %q, want %q: %s", wake.GetOutcome(), outcome, wake.GetDetail())
	}
	for _, w := range words {
		if !strings.Contains(wake.GetDetail(), w) {
			c.t.Errorf("%q is missing in: %s", w, wake.GetDetail())
		}
	}
}

// tryCreate is create, which may be refused.
func (n *node) tryCreate(t *testing.T, o options) error {
	c := n.prepare(t, mood{}, o)
	c.connect(c.startShim())
	r, err := c.task.Create(c.ctx(), c.createRequest())
	c.pid = r.GetPid()
	return errgrpc.ToNative(err)
}

// local is where the snapshots of an identity are.
func (n *node) local(identity string) string {
	return snapshot.DirFor(n.DataDir(), n.Name, "", identity)
}

// forget removes what is left of identities.
func (n *node) forget(t *testing.T, identities ...string) {
	t.Cleanup(func() {
		for _, i := range identities {
			if err := os.RemoveAll(n.local(i)); err != nil {
				t.Error(err)
			}
		}
	})
}

// A workload with an identity goes on in whatever container has it next, and in no other.
func TestIdentity(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "goes on in another container", func(t *testing.T) {
			n.forget(t, "shop/db")
			o := identified("db")
			o.foreign = map[string]string{"io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.container-name": "one"}
			for i := range 3 {
				o.foreign["io.kubernetes.cri.container-name"] = fmt.Sprint("name", i)
				c := n.run(t, m, o)
				c.counts(i + 1)
				if i > 0 {
					c.began("restored")
				}
				c.nap()
				c.leave()
			}
		})
		for what, change := range map[string]func(o *options){
			"another name":          func(o *options) { o.annotations["identity"] = "db2" },
			"another pod namespace": func(o *options) { o.foreign = map[string]string{"io.kubernetes.cri.sandbox-namespace": "bank"} },
			"no identity":           func(o *options) { delete(o.annotations, "identity") },
		} {
			check(t, what+" is another workload", func(t *testing.T) {
				n.forget(t, "db", "db2", "bank/db")
				c := n.run(t, m, identified("db"))
				c.counts(1)
				c.nap()
				c.leave()
				o := identified("db")
				change(&o)
				other := n.run(t, m, o)
				other.counts(1)
				other.end()
				c = n.run(t, m, identified("db"))
				c.counts(2)
				c.end()
			})
		}
	})
	check(t, "one container at a time", func(t *testing.T) {
		first := n.run(t, mood{}, identified("db"))
		err := n.tryCreate(t, identified("db"))
		if err == nil || !strings.Contains(err.Error(), "container "+n.Name+"/"+first.id+" is the workload db") || !strings.Contains(err.Error(), "delete that container first") {
			t.Errorf("a second one: %v", err)
		}
		first.counts(1)
		first.end()
	})
	check(t, "no container of another pod's comes in by its name", func(t *testing.T) {
		n.forget(t, "bank/db")
		o := identified("db")
		o.foreign = map[string]string{"io.kubernetes.cri.sandbox-namespace": "bank"}
		c := n.run(t, mood{}, o)
		c.counts(1)
		c.leave()
		for _, name := range []string{"bank/db", "../bank/db", "..", "bank\x00db"} {
			if err := n.tryCreate(t, identified(name)); err == nil || !strings.Contains(err.Error(), "identity") {
				t.Errorf("%q: %v", name, err)
			}
		}
		o = identified("db")
		o.foreign = map[string]string{"io.kubernetes.cri.sandbox-namespace": "bank/db/.."}
		if err := n.tryCreate(t, o); err == nil || !strings.Contains(err.Error(), "Kubernetes") {
			t.Errorf("a pod namespace that is none: %v", err)
		}
	})
	check(t, "a changed specification starts afresh, and what slept is kept", func(t *testing.T) {
		n.forget(t, "db")
		c := n.run(t, mood{}, identified("db"))
		c.counts(1)
		c.leave()
		o := identified("db")
		o.args = append([]string{}, counter...)
		o.args[2] += " "
		c = n.run(t, mood{}, o)
		c.counts(1)
		c.began("cold-started", "process.args")
		if aside, _ := filepath.Glob(filepath.Join(n.local("db"), "quarantine", "1-*.json")); len(aside) != 1 {
			t.Errorf("set aside: %v", aside)
		}
		c.leave()
	})
	check(t, "restore = never", func(t *testing.T) {
		n.forget(t, "db")
		c := n.run(t, mood{}, identified("db"))
		c.counts(1)
		c.leave()
		c = n.run(t, mood{}, identified("db", "restore", "never"))
		c.counts(1)
		c.began("cold-started", "restore is never")
		c.leave()
		c = n.run(t, mood{}, identified("db"))
		c.counts(2)
		c.end()
	})
	check(t, "what was awake when its shim died is lost, and told", func(t *testing.T) {
		n.forget(t, "db")
		c := n.run(t, mood{}, identified("db"))
		c.counts(1)
		c.sleep()
		c.awaken()
		c.counts(2)
		c.crash()
		c = n.run(t, mood{}, identified("db"))
		c.counts(1)
		c.began("cold-started", "while it was awake", "restore-older")
		c.end()
	})
	check(t, "with restore-older it goes on from what it slept with last", func(t *testing.T) {
		n.forget(t, "db")
		c := n.run(t, mood{}, identified("db"))
		c.counts(1)
		c.sleep()
		c.awaken()
		c.counts(2)
		c.crash()
		c = n.run(t, mood{}, identified("db", "restore-older", "true"))
		c.counts(2)
		c.began("restored-older", "while it was awake")
		c.end()
	})
}

// awaken wakes a container that sleeps, whatever the mood.
func (c *container) awaken() {
	c.t.Helper()
	if _, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"}); err != nil {
		c.t.Fatal(err)
	}
}

// crash kills the shim, and has containerd's `delete` clean up.
func (c *container) crash() {
	c.t.Helper()
	if err := syscall.Kill(int(c.shimPid), syscall.SIGKILL); err != nil {
		c.t.Fatal(err)
	}
	c.awaitEnd()
	c.call(nil, "-bundle", c.bundle, "delete")
}

// With on-stop = hibernate a stop is a sleep, and what can't sleep gets the signal.
func TestStop(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		for name, signal := range map[string]syscall.Signal{"TERM": 15, "INT": 2, "QUIT": 3} {
			check(t, name+" puts it to sleep", func(t *testing.T) {
				c := n.run(t, m, options{args: counter, stdin: true, annotations: map[string]string{"on-stop": "hibernate"}})
				c.counts(1)
				c.nap()
				c.kill(signal)
				c.wantExit("", 0)
				if s := c.workload(); s != "ended" {
					t.Errorf("it is %s", s)
				}
				c.delete("")
				c.shutdown()
				c.again()
				c.counts(2)
				c.end()
			})
		}
		check(t, "other signals are delivered", func(t *testing.T) {
			c := n.run(t, m, options{args: sleeper, annotations: map[string]string{"on-stop": "hibernate"}})
			c.nap()
			c.kill(syscall.SIGHUP)
			c.wantExit("", 129)
		})
		check(t, "KILL ends it", func(t *testing.T) {
			c := n.run(t, m, options{args: counter, stdin: true, annotations: map[string]string{"on-stop": "hibernate"}})
			c.counts(1)
			c.nap()
			c.end()
			c.again()
			c.counts(1)
			c.end()
		})
	})
	check(t, "an exec doesn't hinder it", func(t *testing.T) {
		c := n.run(t, mood{}, options{args: sleeper, annotations: map[string]string{"on-stop": "hibernate"}})
		c.exec(execOptions{args: sleeper}).run()
		c.kill(syscall.SIGTERM)
		c.wantExit("", 0)
		c.delete("")
		c.shutdown()
		if err := os.RemoveAll(snapshot.DirFor(n.DataDir(), n.Name, c.id, "")); err != nil { // it would go on
			t.Error(err)
		}
	})
	check(t, "what can't sleep gets the signal", func(t *testing.T) {
		c := n.run(t, mood{}, options{
			args: []string{"sh", "-c", "trap 'exit 50' TERM; echo ready; while :; do sleep 0.05; done"}, terminal: true,
			annotations: map[string]string{"on-stop": "hibernate"},
		})
		c.hear("ready\r\n")
		c.kill(syscall.SIGTERM)
		c.wantExit("", 50)
		if last := c.lastSleep(); last.GetOutcome() != "refused" || last.GetReason() != "stop" ||
			!strings.Contains(last.GetDetail(), "signal 15 was delivered instead") || !strings.Contains(last.GetDetail(), "terminal") {
			t.Errorf("told as %v", last)
		}
	})
}

// again starts a container that was deleted once more, with the same id.
func (c *container) again() {
	c.t.Helper()
	c.closeStreams()
	for _, name := range []string{"stdin", "stdout", "stderr", "log"} {
		if err := os.Remove(c.stream(name)); err != nil {
			c.t.Fatal(err)
		}
	}
	_ = c.conn.Close()
	c.openStreams()
	c.connect(c.startShim())
	r, err := c.task.Create(c.ctx(), c.createRequest())
	if err != nil {
		c.t.Fatalf("create: %v", err)
	}
	c.pid = r.GetPid()
	c.start()
}
