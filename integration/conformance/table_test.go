package conformance

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/anypb"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// table says what each request comes to in each state of the container:
//
//	ok         it succeeds
//	found      NotFound
//	refused    FailedPrecondition
//	exists     AlreadyExists
//	waits      it has not answered after a while, and gives up when its caller does
//	never      NotImplemented
const table = `
request     created  awake    paused   hibernating asleep  waking   blocked  stopped  deleted
State       ok       ok       ok       ok          ok      ok       ok       ok       found
Connect     ok       ok       ok       ok          ok      ok       ok       ok       ok
Pids        ok       ok       ok       ok          ok      ok       ok       ok       found
Stats       ok       ok       ok       ok          ok      ok       ok       ok       found
Status      ok       ok       ok       ok          ok      ok       ok       ok       found
Wait        waits    waits    waits    waits       waits   waits    waits    ok       found
Shutdown    ok       ok       ok       ok          ok      ok       ok       ok       -
Create      exists   exists   exists   exists      exists  exists   exists   exists   -
ResizePty   ok       ok       ok       ok          ok      ok       ok       ok       found
CloseIO     ok       ok       ok       ok          ok      ok       ok       ok       found
Update      ok       ok       ok       ok          ok      ok       ok       ok       found
Kill0       ok       ok       ok       ok          ok      ok       ok       found    found
Exec        refused  ok       refused  ok          ok      ok       ok       refused  found
Resume      refused  refused  ok       refused     refused refused  refused  refused  found
Checkpoint  refused  ok       ok       waits       ok      waits    refused  refused  found
Delete      ok       refused  refused  refused     refused refused  refused  ok       found
Start       ok       refused  refused  refused     refused refused  refused  refused  found
ExecStart   refused  ok       refused  ok          ok      waits    refused  refused  found
Pause       refused  ok       refused  ok          ok      waits    ok       refused  found
TERM        ok       ok       ok       ok          ok      waits    refused  found    found
KILL        ok       ok       ok       ok          ok      ok       ok       found    found
`

// patience is how long a request that waits is watched.
const patience = 200 * time.Millisecond

// requests are the table's rows.
var requests = map[string]func(ctx context.Context, c *container) error{
	"State": func(ctx context.Context, c *container) error {
		_, err := c.task.State(ctx, &taskapi.StateRequest{ID: c.id})
		return err
	},
	"Connect": func(ctx context.Context, c *container) error {
		_, err := c.task.Connect(ctx, &taskapi.ConnectRequest{ID: c.id})
		return err
	},
	"Pids": func(ctx context.Context, c *container) error {
		r, err := c.task.Pids(ctx, &taskapi.PidsRequest{ID: c.id})
		if err == nil && len(r.GetProcesses()) == 0 {
			return errors.New("no process")
		}
		return err
	},
	"Stats": func(ctx context.Context, c *container) error {
		_, err := c.task.Stats(ctx, &taskapi.StatsRequest{ID: c.id})
		return err
	},
	"Status": func(ctx context.Context, c *container) error {
		_, err := c.shim.Status(ctx, &shimv1.StatusRequest{})
		return err
	},
	"Wait": func(ctx context.Context, c *container) error {
		_, err := c.task.Wait(ctx, &taskapi.WaitRequest{ID: c.id})
		return err
	},
	"Shutdown": func(ctx context.Context, c *container) error {
		_, err := c.task.Shutdown(ctx, &taskapi.ShutdownRequest{ID: c.id})
		return err
	},
	"Create": func(ctx context.Context, c *container) error {
		_, err := c.task.Create(ctx, c.createRequest())
		return err
	},
	"ResizePty": func(ctx context.Context, c *container) error {
		_, err := c.task.ResizePty(ctx, &taskapi.ResizePtyRequest{ID: c.id, Width: 80, Height: 24})
		return err
	},
	"CloseIO": func(ctx context.Context, c *container) error {
		_, err := c.task.CloseIO(ctx, &taskapi.CloseIORequest{ID: c.id, Stdin: true})
		return err
	},
	"Update": update,
	"Kill0":  func(ctx context.Context, c *container) error { return signal(ctx, c, 0) },
	"TERM":   func(ctx context.Context, c *container) error { return signal(ctx, c, syscall.SIGTERM) },
	"KILL":   func(ctx context.Context, c *container) error { return signal(ctx, c, syscall.SIGKILL) },
	"Exec": func(ctx context.Context, c *container) error {
		_, err := addExec(ctx, c)
		return err
	},
	"ExecStart": func(ctx context.Context, c *container) error {
		id, err := addExec(ctx, c)
		if err != nil {
			return err
		}
		_, err = c.task.Start(ctx, &taskapi.StartRequest{ID: c.id, ExecID: id})
		return err
	},
	"Pause": func(ctx context.Context, c *container) error {
		_, err := c.task.Pause(ctx, &taskapi.PauseRequest{ID: c.id})
		return err
	},
	"Resume": func(ctx context.Context, c *container) error {
		_, err := c.task.Resume(ctx, &taskapi.ResumeRequest{ID: c.id})
		return err
	},
	"Checkpoint": func(ctx context.Context, c *container) error {
		dir, err := os.MkdirTemp(c.bundle, "checkpoint")
		if err == nil {
			_, err = c.task.Checkpoint(ctx, &taskapi.CheckpointTaskRequest{ID: c.id, Path: dir})
		}
		return err
	},
	"Delete": func(ctx context.Context, c *container) error {
		_, err := c.task.Delete(ctx, &taskapi.DeleteRequest{ID: c.id})
		return err
	},
	"Start": func(ctx context.Context, c *container) error {
		_, err := c.task.Start(ctx, &taskapi.StartRequest{ID: c.id})
		return err
	},
}

func signal(ctx context.Context, c *container, s syscall.Signal) error {
	_, err := c.task.Kill(ctx, &taskapi.KillRequest{ID: c.id, Signal: uint32(s)})
	return err
}

func addExec(ctx context.Context, c *container) (id string, err error) {
	id = newID()
	_, err = c.task.Exec(ctx, &taskapi.ExecProcessRequest{ID: c.id, ExecID: id,
		Spec: &anypb.Any{Value: []byte(`{"args":["/bin/true"],"cwd":"/"}`)}})
	return id, err
}

func update(ctx context.Context, c *container) error {
	_, err := c.task.Update(ctx, &taskapi.UpdateTaskRequest{ID: c.id, Resources: &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: []byte(`{"cpu":{"shares":512}}`)}})
	return err
}

// enter makes a container in one of the table's states.
func (n *node) enter(t *testing.T, state string) *container {
	t.Helper()
	o := options{args: sleeper, stdin: true}
	if state == "blocked" {
		o.annotations = map[string]string{"on-restore-failure": "block"}
	}
	c := n.create(t, mood{}, o)
	if state == "created" {
		return c
	}
	c.start()
	switch state {
	case "paused":
		if _, err := c.task.Pause(c.ctx(), &taskapi.PauseRequest{ID: c.id}); err != nil {
			t.Fatal(err)
		}
	case "hibernating":
		c.hibernating()
	case "asleep":
		c.sleep()
	case "waking":
		c.sleep()
		c.waking()
	case "blocked":
		c.block()
	case "stopped", "deleted":
		c.kill(syscall.SIGKILL)
		c.wantExit("", 137)
	}
	if state == "deleted" {
		c.delete("")
	}
	return c
}

// block damages the snapshot of a sleeper and lets its wake fail.
func (c *container) block() {
	c.t.Helper()
	c.sleep()
	err := filepath.WalkDir(c.n.DataDir(), func(path string, _ fs.DirEntry, err error) error {
		if err == nil && strings.HasSuffix(path, "pages.img") {
			return os.Truncate(path, 4096)
		}
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{}); err == nil {
		c.t.Fatal("a damaged snapshot was restored")
	}
	if s := c.workload(); s != "blocked" {
		c.t.Fatalf("it is %s, not blocked", s)
	}
}

func TestTable(t *testing.T) {
	n := newHoldingNode(t, nil)
	rows := strings.Split(strings.TrimSpace(table), "\n")
	states := strings.Fields(rows[0])[1:]
	if len(rows)-1 != len(requests) {
		t.Fatalf("the table has %d rows, there are %d requests", len(rows)-1, len(requests))
	}
	for column, state := range states {
		t.Run(state, func(t *testing.T) { walkColumn(t, n, state, rows[1:], column) })
	}
}

// walkColumn makes each request to a container of one state. One that a request has changed is replaced.
func walkColumn(t *testing.T, n *node, state string, rows []string, column int) {
	var c *container
	var as string
	for _, row := range rows {
		fields := strings.Fields(row)
		name, want := fields[0], fields[1+column]
		if want == "-" {
			continue
		}
		if c == nil || c.appearance() != as {
			c = n.enter(t, state)
			as = c.appearance()
		}
		cases.Add(1)
		if got, err := c.ask(name, want); got != want {
			t.Errorf("%s of a container that is %s: %s, want %s (%v)", name, state, got, want, err)
		}
		if name == "TERM" { // it ends at any moment now, or not
			c = nil
		}
	}
}

// ask makes a request and classes what it came to.
func (c *container) ask(name, want string) (string, error) {
	limit := stepLimit
	if want == "waits" {
		limit = patience
	}
	ctx, cancel := context.WithTimeout(c.ctx(), limit)
	defer cancel()
	err := errgrpc.ToNative(requests[name](ctx, c))
	switch {
	case err == nil:
		return "ok", nil
	case ctx.Err() != nil, errdefs.IsDeadlineExceeded(err):
		return "waits", err
	case errdefs.IsNotFound(err):
		return "found", err
	case errdefs.IsFailedPrecondition(err):
		return "refused", err
	case errdefs.IsAlreadyExists(err):
		return "exists", err
	case errdefs.IsNotImplemented(err):
		return "never", err
	}
	return "failed", err
}

// appearance is the state as both services tell it.
func (c *container) appearance() string {
	s, err := c.task.State(c.ctx(), &taskapi.StateRequest{ID: c.id})
	if err != nil {
		return "deleted"
	}
	w, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
	return fmt.Sprint(s.GetStatus(), w.GetState(), err)
}
