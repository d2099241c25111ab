package faults

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// app is a test server whose state is known.
type app struct {
	*lane
	id      string
	pod     harness.Pod
	client  *http.Client
	counter int
	sum     string // of the memory
	taken   string // a file that was taken away
}

// run starts an app in a pod of its own.
func (l *lane) run(id string, annotations map[string]string, flags ...string) *app {
	l.Helper()
	a := &app{lane: l, id: id, client: l.w.HTTP()}
	a.client.Timeout = patience
	var err error
	a.pod, err = l.w.NewPod(a.ctx(), id)
	a.must(err)
	l.Cleanup(a.remove)
	if len(flags) == 0 {
		flags = []string{"--null-io"}
	}
	_, err = l.w.Run(a.ctx(), harness.Container{
		ID: id, Image: "testserver", NetNS: a.pod.Path, Detach: true, Annotations: annotations, Flags: flags,
		Env: []string{"TESTSERVER_MIB=4"},
	})
	a.must(err)
	a.grow()
	return a
}

func (a *app) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	a.client.CloseIdleConnections()
	for _, err := range []error{a.runsc.Set(a.id), a.w.Remove(ctx, a.id), a.w.RemovePod(ctx, a.pod)} {
		if err != nil {
			a.Error(err)
		}
	}
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

// awake waits for the end of a wake: answers may come before it.
func (a *app) awake() {
	a.Helper()
	_, err := a.w.WaitState(a.ctx(), a.id, "awake")
	a.must(err)
}

func (a *app) sleep() {
	a.Helper()
	a.awake()
	done, err := a.w.Sleep(a.ctx(), a.id)
	if err != nil || done.GetOutcome() != "slept" {
		a.Fatalf("hibernation: %v, %v", done, err)
	}
}

// again deletes the task, which has ended, and starts the same container with a new one.
func (a *app) again() {
	a.Helper()
	_, _ = a.w.Ctr(a.ctx(), "tasks", "delete", a.id) // its status is the task's
	_, err := a.w.Ctr(a.ctx(), "tasks", "start", "--detach", "--null-io", a.id)
	a.must(err)
}

// task connects to the shim's task service, as containerd does.
func (a *app) task() (taskv3.TTRPCTaskService, func()) {
	a.Helper()
	r, err := a.w.Record(a.id)
	a.must(err)
	var d net.Dialer
	conn, err := d.DialContext(a.ctx(), "unix", a.w.Path(strings.TrimPrefix(r.Address, "unix://")))
	a.must(err)
	c := ttrpc.NewClient(conn)
	return taskv3.NewTTRPCTaskClient(c), func() { c.Close() }
}

func (a *app) bundle() string {
	return filepath.Join(a.w.Dir, "state/io.containerd.runtime.v2.task", a.w.Name, a.id)
}

// image finds a file of the snapshots by a pattern below the app's own directory.
func (a *app) stored(pattern string) []string {
	a.Helper()
	found, err := filepath.Glob(filepath.Join(a.w.Path(a.w.DataDir()), a.w.Name, "*", pattern))
	a.must(err)
	return found
}
