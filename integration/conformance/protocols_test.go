package conformance

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"google.golang.org/protobuf/proto"
)

// Each containerd since 1.6 starts a shim in its own way, and one life of a container goes by the service that it was told
// to use. Package shim/manager has the fuller table.
func TestProtocols(t *testing.T) {
	n := newNode(t, nil)
	for _, tc := range []struct {
		name  string
		old   bool
		stdin func(*container) []byte
		parse func(*testing.T, []byte) (version int32, address string)
		want  int32
	}{
		{"1.6", true, noInput, bare, 2},
		{"1.7", false, noInput, decoded, 2},
		{"2.2", false, noInput, decoded, 2},
		{"2.4", false, (*container).bootstrap, bootstrapped, 3},
	} {
		moods(t, func(t *testing.T, m mood) {
			check(t, tc.name, func(t *testing.T) {
				c := n.prepare(t, m, options{args: sleeper, old: tc.old})
				version, address := tc.parse(t, c.call(tc.stdin(c), "start"))
				if version != tc.want {
					t.Fatalf("version %d, want %d", version, tc.want)
				}
				c.connect(address)
				if version == 3 {
					c.lifeOf3()
				} else {
					c.lifeOf2()
				}
				c.wantTopics("create", "start", "exit", "delete")
			})
		})
	}
}

func noInput(*container) []byte { return nil }

func bare(_ *testing.T, out []byte) (int32, string) { return 2, strings.TrimSpace(string(out)) }

func decoded(t *testing.T, out []byte) (int32, string) {
	t.Helper()
	var r struct {
		Version           int32
		Address, Protocol string
	}
	if err := json.Unmarshal(out, &r); err != nil || r.Protocol != "ttrpc" {
		t.Fatalf("%q: %v", out, err)
	}
	return r.Version, r.Address
}

func bootstrapped(t *testing.T, out []byte) (int32, string) {
	t.Helper()
	var r bootstrap.BootstrapResult
	if err := proto.Unmarshal(out, &r); err != nil || r.GetProtocol() != "ttrpc" {
		t.Fatalf("%q: %v", out, err)
	}
	return r.GetVersion(), r.GetAddress()
}

func (c *container) lifeOf3() {
	c.t.Helper()
	r, err := c.task.Create(c.ctx(), c.createRequest())
	if err != nil {
		c.t.Fatalf("create: %v", err)
	}
	c.pid = r.GetPid()
	c.start()
	c.nap()
	c.end()
}

// lifeOf2 is a life by version 2 of the service, whose messages have the same form.
func (c *container) lifeOf2() {
	c.t.Helper()
	task := taskv2.NewTTRPCTaskClient(c.conn)
	must := func(what string, err error) {
		if c.t.Helper(); err != nil {
			c.t.Fatalf("%s: %v", what, err)
		}
	}
	data, err := proto.Marshal(c.createRequest())
	must("Create", err)
	var create taskv2.CreateTaskRequest
	must("Create", proto.Unmarshal(data, &create))
	created, err := task.Create(c.ctx(), &create)
	must("Create", err)
	started, err := task.Start(c.ctx(), &taskv2.StartRequest{ID: c.id})
	must("Start", err)
	c.nap()
	state, err := task.State(c.ctx(), &taskv2.StateRequest{ID: c.id})
	must("State", err)
	if state.GetStatus() != tasktypes.Status_RUNNING || state.GetPid() != created.GetPid() || started.GetPid() != created.GetPid() {
		c.t.Errorf("state %v; created %d, started %d", state, created.GetPid(), started.GetPid())
	}
	_, err = task.Stats(c.ctx(), &taskv2.StatsRequest{ID: c.id})
	must("Stats", err)
	_, err = task.Kill(c.ctx(), &taskv2.KillRequest{ID: c.id, Signal: uint32(syscall.SIGKILL)})
	must("Kill", err)
	ended, err := task.Wait(c.ctx(), &taskv2.WaitRequest{ID: c.id})
	must("Wait", err)
	deleted, err := task.Delete(c.ctx(), &taskv2.DeleteRequest{ID: c.id})
	must("Delete", err)
	if ended.GetExitStatus() != 137 || deleted.GetExitStatus() != 137 || deleted.GetPid() != created.GetPid() {
		c.t.Errorf("ended %v, deleted %v", ended, deleted)
	}
	_, _ = task.Shutdown(c.ctx(), &taskv2.ShutdownRequest{ID: c.id}) // the answer may be lost as it ends
	c.awaitEnd()
}
