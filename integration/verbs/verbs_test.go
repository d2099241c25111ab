// Package verbs tries every verb of ctr on containers that are awake and on containers that sleep.
package verbs

import (
	"context"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// limit bounds one verb, a wake included.
const limit = 30 * time.Second

// node is a world with the verbs under test.
type node struct {
	*harness.World
	t *testing.T
}

// All verbs share a world, one after the other: each leaves nothing behind.
func TestVerbs(t *testing.T) {
	n := &node{harness.New(t, harness.Options{Settings: map[string]string{"mode": `"manual"`}}), t}
	for _, c := range []struct {
		name string
		test func(*testing.T, *node)
	}{
		{"run-to-the-end", testRunToTheEnd},
		{"output-through-sleep", testOutputThroughSleep},
		{"again", testAgain},
		{"logger", testLogger},
		{"log-file", testLogFile},
		{"bad-logger", testBadLogger},
		{"attach", testAttach},
		{"input-through-sleep", testInputThroughSleep},
		{"ends-at-once", testEndsAtOnce},
		{"exec", testExec},
		{"live-exec", testLiveExec},
		{"silent-exec", testSilentExec},
		{"detached-exec", testDetachedExec},
		{"terminal", testTerminal},
		{"terminal-of-exec", testTerminalOfExec},
		{"signals", testSignals},
		{"other-signals", testOtherSignals},
		{"remove", testRemove},
		{"id-begins", testIDBegins},
		{"looks-running", testLooksRunning},
		{"pause", testPause},
		{"limits", testLimits},
		{"memory-through-sleep", testMemoryThroughSleep},
		{"shared-namespace", testSharedNamespace},
		{"events", testEvents},
		{"hooks", testHooks},
		{"private", testPrivate},
	} {
		t.Run(c.name, func(t *testing.T) { c.test(t, n.on(t)) })
	}
}

// on is the node for a subtest.
func (n *node) on(t *testing.T) *node { return &node{n.World, t} }

// context is for one verb, also one of a test's cleanup.
func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	n.t.Cleanup(cancel)
	return ctx
}

// result is how a program ended.
type result struct {
	stdout, stderr string
	code           int
}

// ctr runs ctr with an input and never fails by itself: the status is part of the result.
func (n *node) ctr(input string, args ...string) result {
	n.t.Helper()
	cmd := n.client(n.context(), args...)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if input != "" {
		cmd.Stdin = strings.NewReader(input)
	}
	code := status(n.t, cmd.Run())
	return result{code: code, stdout: stdout.String(), stderr: said(stderr.String())}
}

// said is a ctr's standard error without what ctr itself logs.
func said(stderr string) string {
	var own strings.Builder
	for line := range strings.Lines(stderr) {
		if !strings.HasPrefix(line, "time=") {
			own.WriteString(line)
		}
	}
	return own.String()
}

func (n *node) client(ctx context.Context, args ...string) *exec.Cmd {
	return n.Command(ctx, "ctr", append([]string{"--address", n.Address(), "--namespace", n.Name}, args...)...)
}

func status(t *testing.T, err error) int {
	t.Helper()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &exit):
		return exit.ExitCode()
	}
	t.Fatal(err)
	return -1
}

// must runs ctr and fails the test unless it succeeds.
func (n *node) must(args ...string) string {
	n.t.Helper()
	r := n.ctr("", args...)
	if r.code != 0 {
		n.t.Fatalf("ctr %s: status %d: %s", strings.Join(args, " "), r.code, r.stderr)
	}
	return r.stdout
}

// run is `ctr run` to the end; the container is removed by it.
func (n *node) run(input string, c harness.Container) result {
	n.t.Helper()
	n.imported(c.Image)
	c.Flags = append(c.Flags, "--rm")
	return n.ctr(input, n.RunArgs(c)...)
}

func (n *node) imported(image string) {
	n.t.Helper()
	if err := n.Import(n.context(), image); err != nil {
		n.t.Fatal(err)
	}
}

// detached starts a container and removes it with the test.
func (n *node) detached(c harness.Container) {
	n.t.Helper()
	c.Detach = true
	if _, err := n.Run(n.context(), c); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := n.Remove(n.context(), c.ID); err != nil {
			n.t.Error(err)
		}
	})
}

func (n *node) sleep(id string) {
	n.t.Helper()
	if _, err := n.Sleep(n.context(), id); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) status(id string) *shimv1.StatusResponse {
	n.t.Helper()
	s, err := n.Status(n.context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	return s
}

func (n *node) is(id, state string) {
	n.t.Helper()
	if s := n.status(id); s.GetState() != state {
		n.t.Fatalf("%s is %s, want %s; last wake: %v; last hibernation: %v", id, s.GetState(), state, s.GetLastWake(), s.GetLastHibernate())
	}
}

// until polls a condition and fails with what it was told last.
func (n *node) until(what string, done func() (bool, string)) {
	n.t.Helper()
	deadline := time.Now().Add(limit)
	for {
		ok, last := done()
		if ok {
			return
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("%s: not within %v; last: %s", what, limit, last)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// process is a ctr that runs beside the test.
type process struct {
	*exec.Cmd
	in   io.WriteCloser
	out  *output
	errs *output
	done chan error
}

// start runs ctr in the background, with its streams in the test's hands.
func (n *node) start(args ...string) *process {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), 2*limit)
	p := &process{Cmd: n.client(ctx, args...), out: &output{}, errs: &output{}, done: make(chan error, 1)}
	in, err := p.StdinPipe()
	if err != nil {
		n.t.Fatal(err)
	}
	p.in, p.Stdout, p.Stderr = in, p.out, p.errs
	if err := p.Start(); err != nil {
		n.t.Fatal(err)
	}
	go func() { p.done <- p.Wait(); cancel() }()
	return p
}

// stop ends a ctr that would go on for ever.
func (p *process) stop() {
	_ = p.Process.Kill()
	<-p.done
}

// end waits for a process's status.
func (p *process) end(t *testing.T) int {
	t.Helper()
	select {
	case err := <-p.done:
		return status(t, err)
	case <-time.After(limit):
		t.Fatalf("ctr %s did not end; output %q, errors %q", strings.Join(p.Args[1:], " "), p.out, p.errs)
		return -1
	}
}
