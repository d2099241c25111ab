// Package checkpointverbs tries containerd's own verbs for checkpoints on containers that are awake and on containers
// that sleep, which no such verb may wake.
package checkpointverbs

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// limit bounds one verb, a restore included.
const limit = 60 * time.Second

type node struct {
	*harness.World
	t   *testing.T
	pod harness.Pod // the one namespace in which a container and what is restored of it have their turns
	id  string
}

func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	n.t.Cleanup(cancel)
	return ctx
}

// try runs ctr and returns its output, or what it complained of.
func (n *node) try(args ...string) (stdout, complaint string) {
	n.t.Helper()
	cmd := n.Command(n.context(), "ctr", append([]string{"--address", n.Address(), "--namespace", n.Name}, args...)...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if _, ended := err.(*exec.ExitError); err != nil && !ended {
		n.t.Fatal(err)
	}
	if err == nil {
		return out.String(), ""
	}
	return out.String(), err.Error() + ": " + errs.String()
}

func (n *node) must(args ...string) string {
	n.t.Helper()
	out, complaint := n.try(args...)
	if complaint != "" {
		n.t.Fatalf("ctr %s: %s", strings.Join(args, " "), complaint)
	}
	return out
}

// serve starts a test server in the pod, with the test's name.
func (n *node) serve() {
	n.t.Helper()
	if _, err := n.Run(n.context(), harness.Container{ID: n.id, Image: "testserver", NetNS: n.pod.Path, Detach: true}); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { n.remove(n.id) })
	n.answers()
}

func (n *node) answers() {
	n.t.Helper()
	if err := n.WaitPort(n.context(), net.JoinHostPort(n.pod.IP, "8080")); err != nil {
		n.t.Fatal(err)
	}
}

// remove removes a container that may be gone.
func (n *node) remove(id string) {
	n.t.Helper()
	all, err := n.Containers(n.context())
	if err != nil {
		n.t.Error(err)
	}
	for _, c := range all {
		if c == id {
			if err := n.Remove(n.context(), id); err != nil {
				n.t.Error(err)
			}
		}
	}
}

func (n *node) get(path string) string {
	n.t.Helper()
	body, err := n.ask(path)
	if err != nil {
		n.t.Fatalf("%s: %v", path, err)
	}
	return body
}

func (n *node) ask(path string) (string, error) {
	client := n.HTTP()
	defer client.CloseIdleConnections()
	r, err := http.NewRequestWithContext(n.context(), http.MethodPost, "http://"+net.JoinHostPort(n.pod.IP, "8080")+path, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", response.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

func (n *node) counts(want string) {
	n.t.Helper()
	if got := n.get("/counter"); got != want {
		n.t.Errorf("the counter says %s, want %s", got, want)
	}
}

func (n *node) sleep(id string) {
	n.t.Helper()
	if _, err := n.Sleep(n.context(), id); err != nil {
		n.t.Fatal(err)
	}
}

// is checks the workload's state, and containerd's view of its task.
func (n *node) is(id, state, task string) *shimv1.StatusResponse {
	n.t.Helper()
	s, err := n.Status(n.context(), id)
	for began := time.Now(); err == nil && s.GetState() == "waking" && state == "awake" && time.Since(began) < limit; {
		time.Sleep(10 * time.Millisecond) // a wake answers before it has ended
		s, err = n.Status(n.context(), id)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	now, err := n.Task(n.context(), id)
	if err != nil || s.GetState() != state || now.State != task {
		n.t.Errorf("%s is %s, and to containerd %s (%v); want %s, %s; last wake %v", id, s.GetState(), now.State, err, state, task, s.GetLastWake())
	}
	return s
}
