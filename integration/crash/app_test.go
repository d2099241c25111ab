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
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/stepper"
)

// patience bounds everything that is waited for; nothing here takes so long unless it fails.
const patience = 30 * time.Second

// app is a test server in a network namespace that outlives it.
type app struct {
	*testing.T
	w       *harness.World
	id      string
	pod     harness.Pod
	found   []string // the pod's network before the container
	client  *http.Client
	counter int
	sum     string // of the memory
	tier    string // the directory of its snapshots
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
	a.run(o)
	return a
}

// prepare makes the pod of an app.
func prepare(t *testing.T, w *harness.World, id string) *app {
	t.Helper()
	a := &app{T: t, w: w, id: id, client: w.HTTP()}
	var err error
	a.pod, err = w.NewPod(a.ctx(), id)
	a.must(err)
	a.found = a.dumpPod()
	t.Cleanup(a.end)
	a.must(w.Import(a.ctx(), "testserver"))
	return a
}

func (a *app) run(o options) {
	a.Helper()
	_, err := a.w.Run(a.ctx(), harness.Container{
		ID: a.id, Image: "testserver", NetNS: a.pod.Path, Detach: true, Annotations: o.annotations,
		Flags: []string{"--null-io"}, // ctr's FIFOs outlive a task that ends by a crash
		Env:   []string{fmt.Sprintf("TESTSERVER_MIB=%d", max(o.mib, 4))},
	})
	a.must(err)
	a.grow()
	a.tier = filepath.Join(a.w.DataDir(), a.w.Name, filepath.Base(a.snapshots()))
}

// end removes the app, and looks that nothing of it is left in its pod.
func (a *app) end() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.client.CloseIdleConnections()
	if a.w.Containerd.Pid() == 0 {
		if err := a.w.Containerd.Start(ctx); err != nil {
			a.Error(err)
		}
	}
	if err := a.w.Remove(ctx, a.id); err != nil {
		a.Error(err)
	}
	if left := a.dumpPod(); !slices.Equal(a.found, left) {
		a.Errorf("left in the pod:\n%s\nfound:\n%s", strings.Join(left, "\n"), strings.Join(a.found, "\n"))
	}
	if err := a.w.RemovePod(ctx, a.pod); err != nil {
		a.Error(err)
	}
}

// dumpPod is all of the pod's network that the product changes. Neighbours and counters come and go by themselves.
func (a *app) dumpPod() []string {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	out, err := a.w.Shell(ctx, "ip netns exec "+a.pod.Name+` sh -ec '
ip -o -brief link | cut -d" " -f1; ip rule; ip -4 route show table all; nft list ruleset; ss -Htln
for f in net/core/somaxconn net/ipv4/tcp_abort_on_overflow net/ipv4/conf/eth0/forwarding; do cat /proc/sys/$f; done'`)
	if err != nil {
		a.Error("look at the pod:", err)
	}
	return strings.Split(strings.TrimSpace(out), "\n")
}

// grow waits for the port, and begins to know the state.
func (a *app) grow() {
	a.Helper()
	a.must(a.w.WaitPort(a.ctx(), a.address(8080)))
	a.counter = 0
	a.count()
	a.sum = a.get("GET", "/memory/sha256")
}

// count advances the counter, which must not have lost one.
func (a *app) count() {
	a.Helper()
	a.counter++
	if got := a.get("POST", "/counter"); got != fmt.Sprint(a.counter) {
		a.Fatalf("the counter is %s, want %d", got, a.counter)
	}
}

// goesOn looks that all state is there.
func (a *app) goesOn() {
	a.Helper()
	a.count()
	if got := a.get("GET", "/memory/sha256"); got != a.sum {
		a.Fatal("the memory is another one")
	}
}

// isNew looks that the server began afresh, and takes its state for known.
func (a *app) isNew() {
	a.Helper()
	sum := a.sum
	a.grow()
	if a.sum == sum {
		a.Fatal("the memory is that of the lost server")
	}
}

func (a *app) address(port int) string { return net.JoinHostPort(a.pod.IP, fmt.Sprint(port)) }

func (a *app) get(method, path string) string {
	a.Helper()
	body, err := a.try(method, path)
	if err != nil {
		a.Fatal(err)
	}
	return body
}

func (a *app) try(method, path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+a.address(8080)+path, nil)
	if err != nil {
		return "", err
	}
	response, err := a.client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, path, response.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// dial opens a connection to the line echo.
func (a *app) dial() net.Conn {
	a.Helper()
	c, err := a.w.Dial(a.ctx(), "tcp", a.address(7000))
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
	a.client.CloseIdleConnections()
	_, err := a.w.WaitState(a.ctx(), a.id, "awake") // an answer may come before the wake is over
	a.must(err)
	done, err := a.w.Sleep(a.ctx(), a.id)
	if err != nil || done.GetOutcome() != "slept" {
		a.Fatalf("hibernation: %v, %v", done, err)
	}
}

// killShim ends the app's shim as a crash does, and waits until containerd has run `delete`.
func (a *app) killShim() {
	a.Helper()
	r, err := a.w.Record(a.id)
	a.must(err)
	a.must(syscall.Kill(r.Pid, syscall.SIGKILL))
	a.shimGone()
}

func (a *app) shimGone() {
	a.Helper()
	a.must(a.w.WaitTask(a.ctx(), a.id, ""))
	eventually(a.T, "the clean-up after the shim ends", func() bool { return len(a.processes()) == 0 })
	eventually(a.T, "containerd removes the bundle", func() bool {
		_, err := os.Stat(a.bundle())
		return errors.Is(err, os.ErrNotExist)
	})
}

// processes are those that have to do with the app, by what they were started for.
func (a *app) processes() []harness.Process {
	all, err := a.w.Processes()
	a.must(err)
	return slices.DeleteFunc(all, func(p harness.Process) bool { return !slices.Contains(p.Argv, a.id) })
}

// again starts the same container with a new task.
func (a *app) again() {
	a.Helper()
	var err error
	eventually(a.T, "containerd forgets the old task", func() bool {
		_, err = a.w.Ctr(a.ctx(), "tasks", "start", "--detach", "--null-io", a.id)
		return err == nil || !strings.Contains(err.Error(), "already exists")
	})
	a.must(err)
}

// lastWake is what the shim tells of its newest wake.
func (a *app) lastWake() (outcome, detail string) {
	a.Helper()
	s, err := a.w.Status(a.ctx(), a.id)
	a.must(err)
	return s.GetLastWake().GetOutcome(), s.GetLastWake().GetDetail()
}

// ended waits until the task has ended, and deletes it.
func (a *app) ended() {
	a.Helper()
	a.must(a.w.WaitTask(a.ctx(), a.id, "STOPPED"))
	_, err := a.w.Ctr(a.ctx(), "tasks", "delete", a.id)
	a.must(err)
}

// inLog looks for text in what the shims said, through containerd's log, from an earlier length on.
func (a *app) inLog(from int64, texts ...string) {
	a.Helper()
	var log string
	for line := range strings.Lines(a.log()[from:]) {
		if strings.Contains(line, " id="+a.id+" ") {
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

func (a *app) bundle() string {
	return filepath.Join(a.w.Dir, "state/io.containerd.runtime.v2.task", a.w.Name, a.id)
}

// step begins to hold the app's shim at each step that it journals.
func step(t *testing.T, a *app) *stepper.Stepper {
	t.Helper()
	return stepper.Hold(t, a.w.Path(filepath.Join(a.bundle(), "hibernate")))
}

// snapshots is the directory of the app's local tier.
func (a *app) snapshots() string {
	a.Helper()
	heads, err := filepath.Glob(filepath.Join(a.w.Path(a.w.DataDir()), "*", "*", "head.json"))
	a.must(err)
	for _, h := range heads {
		if b, err := os.ReadFile(h); err == nil && strings.Contains(string(b), fmt.Sprintf("%q", a.id)) {
			return filepath.Dir(h)
		}
	}
	a.Fatalf("no snapshots of %s among %v", a.id, heads)
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

// descriptors is how many the app's shim has open.
func (a *app) descriptors() int {
	a.Helper()
	r, err := a.w.Record(a.id)
	a.must(err)
	n, err := harness.Descriptors(r.Pid)
	a.must(err)
	return n
}

// eventually polls until ok.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("in vain: %s", what)
		}
	}
}

var manual = map[string]string{"mode": `"manual"`}
