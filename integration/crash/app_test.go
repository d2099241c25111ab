// Package crash kills, starves and damages what a sleeping container rests on, one thing at a time: the daemon, the shim,
// containerd, the holder, the sandbox, the disk and the snapshot. What can be kept must be kept, what is lost must be
// told, and nothing may be left behind.
//
// An *app* is a test server whose state is known, so that a loss is seen.
package crash

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/integration/stepper"
)

const patience = known.Patience

// app is a test server in a network namespace that outlives it.
type app struct {
	*testing.T
	*known.Server
	w     *harness.World
	found []string // the pod's network before the container
	tier  string   // the directory of its snapshots
}

// options of an app.
type options struct {
	mib         int
	annotations map[string]string
}

// start runs an app and gives it state. It ends with the test, and its pod must then be as it was found.
func start(t *testing.T, w *harness.World, id string, o options) *app {
	t.Helper()
	a := prepare(t, w, id)
	a.start(o)
	return a
}

// prepare makes the pod of an app.
func prepare(t *testing.T, w *harness.World, id string) *app {
	t.Helper()
	a := &app{T: t, w: w}
	pod, err := w.NewPod(a.ctx(), id)
	a.must(err)
	a.Server = known.New(t, w, id, pod)
	a.found = a.dumpPod()
	t.Cleanup(a.end)
	a.must(w.Import(a.ctx(), "testserver"))
	return a
}

func (a *app) start(o options) {
	a.Helper()
	a.Start(harness.Container{
		Annotations: o.annotations, Flags: []string{"--null-io"}, // ctr's FIFOs outlive a task that ends by a crash
	}, max(o.mib, 4))
	a.tier = filepath.Join(a.w.DataDir(), a.w.Name, filepath.Base(a.snapshots()))
}

// end removes the app, and looks that nothing of it is left in its pod.
func (a *app) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.HangUp()
	if a.w.Containerd.Pid() == 0 {
		if err := a.w.Containerd.Start(ctx); err != nil {
			a.Error(err)
		}
	}
	if err := a.w.Remove(ctx, a.ID); err != nil {
		a.Error(err)
	}
	if left := a.dumpPod(); !slices.Equal(a.found, left) {
		a.Errorf("left in the pod:\n%s\nfound:\n%s", strings.Join(left, "\n"), strings.Join(a.found, "\n"))
	}
	if err := a.w.RemovePod(ctx, a.Pod); err != nil {
		a.Error(err)
	}
}

// dumpPod is all of the pod's network that the product changes. Neighbours and counters come and go by themselves.
func (a *app) dumpPod() []string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := a.w.Shell(ctx, "ip netns exec "+a.Pod.Name+` sh -ec '
ip -o -brief link | cut -d" " -f1; ip rule; ip -4 route show table all; nft list ruleset; ss -Htln
for f in net/core/somaxconn net/ipv4/tcp_abort_on_overflow net/ipv4/conf/eth0/forwarding; do cat /proc/sys/$f; done'`)
	if err != nil {
		a.Error("look at the pod:", err)
	}
	return strings.Split(strings.TrimSpace(out), "\n")
}

// dial opens a connection to the line echo.
func (a *app) dial() net.Conn {
	a.Helper()
	c, err := a.w.Dial(a.ctx(), "tcp", a.Address(7000))
	a.must(err)
	a.Cleanup(func() { c.Close() })
	return c
}

// echo sends a line and wants it back.
func echo(c net.Conn, line string) error {
	if _, err := fmt.Fprintln(c, line); err != nil {
		return err
	}
	return hear(c, line)
}

// hear wants a line.
func hear(c net.Conn, line string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	answer := make([]byte, len(line)+1)
	if _, err := io.ReadFull(c, answer); err != nil {
		return fmt.Errorf("no answer to %q: %w", line, err)
	}
	if string(answer) != line+"\n" {
		return fmt.Errorf("%q was answered by %q", line, answer)
	}
	return nil
}

func (a *app) sleep() {
	a.Helper()
	a.HangUp()
	a.Sleep()
}

// killShim ends the app's shim as a crash does, and waits until containerd has run `delete`.
func (a *app) killShim() {
	a.Helper()
	a.must(syscall.Kill(a.Shim(), syscall.SIGKILL))
	a.shimGone()
}

func (a *app) shimGone() {
	a.Helper()
	a.must(a.w.WaitTask(a.ctx(), a.ID, ""))
	known.Eventually(a.T, "the clean-up after the shim ends", func() bool { return len(a.processes()) == 0 })
	known.Eventually(a.T, "containerd removes the bundle", func() bool {
		_, err := os.Stat(a.Bundle())
		return errors.Is(err, os.ErrNotExist)
	})
}

// processes are those that have to do with the app, by what they were started for.
func (a *app) processes() []harness.Process {
	all, err := a.w.Processes()
	a.must(err)
	return slices.DeleteFunc(all, func(p harness.Process) bool { return !slices.Contains(p.Argv, a.ID) })
}

// lastWake is what the shim tells of its newest wake.
func (a *app) lastWake() (outcome, detail string) {
	a.Helper()
	s, err := a.w.Status(a.ctx(), a.ID)
	a.must(err)
	return s.GetLastWake().GetOutcome(), s.GetLastWake().GetDetail()
}

// ended waits until the task has ended, and deletes it.
func (a *app) ended() {
	a.Helper()
	a.must(a.w.WaitTask(a.ctx(), a.ID, "STOPPED"))
	_, err := a.w.Ctr(a.ctx(), "tasks", "delete", a.ID)
	a.must(err)
}

// inLog looks for text in what the shims said, through containerd's log, from an earlier length on.
func (a *app) inLog(from int64, texts ...string) {
	a.Helper()
	var log string
	for line := range strings.Lines(a.log()[from:]) {
		if strings.Contains(line, " id="+a.ID+" ") {
			log += line
		}
	}
	for _, text := range texts {
		if !strings.Contains(log, text) {
			a.Errorf("the log does not tell %q:\n%s", text, log[max(0, len(log)-2000):])
		}
	}
}

func (a *app) log() string {
	b, err := os.ReadFile(a.w.Containerd.LogFile)
	a.must(err)
	return string(b)
}

// step begins to hold the app's shim at each step that it journals.
func step(t *testing.T, a *app) *stepper.Stepper {
	t.Helper()
	return stepper.Hold(t, a.w.Path(filepath.Join(a.Bundle(), "hibernate")))
}

// snapshots is the directory of the app's local tier.
func (a *app) snapshots() string {
	a.Helper()
	heads, err := filepath.Glob(filepath.Join(a.w.Path(a.w.DataDir()), "*", "*", "head.json"))
	a.must(err)
	for _, h := range heads {
		if b, err := os.ReadFile(h); err == nil && strings.Contains(string(b), fmt.Sprintf("%q", a.ID)) {
			return filepath.Dir(h)
		}
	}
	a.Fatalf("no snapshots of %s among %v", a.ID, heads)
	return ""
}

func (a *app) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	a.Cleanup(cancel)
	return ctx
}

func (a *app) must(err error) {
	a.Helper()
	if err != nil {
		a.Fatal(err)
	}
}

var manual = map[string]string{"mode": `"manual"`}

// checked has a snapshot compared before its sandbox runs, so that a damaged one never answers. What is found later,
// integration/flat is about.
var checked = map[string]string{"mode": `"manual"`, "verify": `"before"`}
