package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

func TestLifecycle(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "create start kill wait delete shutdown", func(t *testing.T) { lifecycle(t, n, m) })
		check(t, "older protocol", func(t *testing.T) { olderProtocol(t, n, m) })
		check(t, "two ids that begin alike", func(t *testing.T) { prefix(t, n, m) })
	})
	check(t, "stress", func(t *testing.T) { stress(t, n) })
	check(t, "parallel", func(t *testing.T) { parallel(t, n) })
}

func lifecycle(t *testing.T, n *node, m mood) {
	c := n.create(t, m, options{args: sleeper})
	c.wantStatus(tasktypes.Status_CREATED)
	c.start()
	c.wantStatus(tasktypes.Status_RUNNING)
	c.nap()
	c.wantStatus(tasktypes.Status_RUNNING)
	s := c.state("")
	if s.GetPid() != c.pid || s.GetBundle() != c.bundle || s.GetStdout() != c.stream("stdout") || s.GetExitedAt().IsValid() && s.GetExitedAt().GetSeconds() > 0 {
		t.Fatalf("State answers %v", s)
	}
	if !alive(c.pid) {
		t.Fatalf("the task's process %d is not there", c.pid)
	}
	c.kill(syscall.SIGKILL)
	c.wantExit("", 137)
	c.wantStatus(tasktypes.Status_STOPPED)
	if s := c.state(""); s.GetExitStatus() != 137 || !s.GetExitedAt().IsValid() {
		t.Fatalf("State answers %v", s)
	}
	if r := c.delete(""); r.GetExitStatus() != 137 || r.GetPid() != c.pid {
		t.Fatalf("Delete answers %v", r)
	}
	c.shutdown()
	if _, err := os.Lstat(n.Path(strings.TrimPrefix(c.address, "unix://"))); !os.IsNotExist(err) {
		t.Fatalf("the shim's socket is still there: %v", err)
	}
}

// olderProtocol is containerd 1.7's: nothing on standard input, JSON as the answer, version 2 of the task service.
func olderProtocol(t *testing.T, n *node, m mood) {
	c := n.prepare(t, m, options{args: sleeper})
	var answer struct {
		Version           int
		Address, Protocol string
	}
	if err := json.Unmarshal(c.call(nil, "start"), &answer); err != nil || answer.Version != 2 || answer.Protocol != "ttrpc" {
		t.Fatalf("start answers %+v: %v", answer, err)
	}
	c.connect(answer.Address)
	v2 := func(method string, request, response any) {
		t.Helper()
		if err := c.conn.Call(c.ctx(), "containerd.task.v2.Task", method, request, response); err != nil {
			t.Fatalf("%s: %v", method, err)
		}
	}
	var created taskapi.CreateTaskResponse
	v2("Create", c.createRequest(), &created)
	v2("Start", &taskapi.StartRequest{ID: c.id}, &taskapi.StartResponse{})
	c.nap()
	var state taskapi.StateResponse
	v2("State", &taskapi.StateRequest{ID: c.id}, &state)
	if state.GetStatus() != tasktypes.Status_RUNNING || state.GetPid() != created.GetPid() {
		t.Fatalf("State answers %v", &state)
	}
	v2("Kill", &taskapi.KillRequest{ID: c.id, Signal: 9}, &taskapi.WaitResponse{})
	var waited taskapi.WaitResponse
	v2("Wait", &taskapi.WaitRequest{ID: c.id}, &waited)
	if waited.GetExitStatus() != 137 {
		t.Fatalf("Wait answers %v", &waited)
	}
	v2("Delete", &taskapi.DeleteRequest{ID: c.id}, &taskapi.DeleteResponse{})
	c.shutdown()
}

func prefix(t *testing.T, n *node, m mood) {
	id := newID()
	long := n.run(t, m, options{id: id + "-2", args: sleeper})
	short := n.run(t, m, options{id: id, args: sleeper})
	long.nap()
	short.nap()
	short.end()
	long.wantStatus(tasktypes.Status_RUNNING)
	long.rise()
	e := long.exec(execOptions{args: []string{"true"}})
	e.run()
	e.wantExit(0)
	long.end()
}

// stress is one lifecycle after the other; the odd ones sleep.
func stress(t *testing.T, n *node) {
	for i := range 8 {
		c := n.run(t, mood{asleep: i%2 == 1}, options{args: sleeper})
		c.nap()
		c.end()
	}
}

// parallel is several containers at a time.
func parallel(t *testing.T, n *node) {
	const many = 4
	var all []*container
	for range many {
		all = append(all, n.prepare(t, mood{asleep: true}, options{args: sleeper}))
	}
	addresses := make([]string, many)
	for i, c := range all {
		addresses[i] = c.startShim()
		c.connect(addresses[i])
	}
	var group sync.WaitGroup
	errs := make(chan error, many)
	for _, c := range all {
		group.Go(func() { errs <- c.whole() })
	}
	group.Wait()
	close(errs)
	for err := range errs {
		if err != nil {
			t.Error(err)
		}
	}
	for _, c := range all {
		c.shutdown()
	}
}

// whole is a lifecycle with a sleep and a wake in it, for a goroutine.
func (c *container) whole() error {
	ctx := c.n.context(c.t)
	_, err := c.task.Create(ctx, c.createRequest())
	if err == nil {
		_, err = c.task.Start(ctx, &taskapi.StartRequest{ID: c.id})
	}
	if err == nil {
		_, err = c.shim.Hibernate(ctx, &shimv1.HibernateRequest{Manual: true})
	}
	if err == nil {
		_, err = c.task.Kill(ctx, &taskapi.KillRequest{ID: c.id, Signal: uint32(syscall.SIGUSR1)})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", c.id, err)
	}
	w, err := c.task.Wait(ctx, &taskapi.WaitRequest{ID: c.id})
	if err == nil && w.GetExitStatus() != 128+uint32(syscall.SIGUSR1) {
		err = fmt.Errorf("exit status %d", w.GetExitStatus())
	}
	if err == nil {
		_, err = c.task.Delete(ctx, &taskapi.DeleteRequest{ID: c.id})
	}
	return err
}

func TestExitCodes(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		for _, code := range []uint32{0, 1, 2, 42, 127, 255} {
			check(t, fmt.Sprint(code), func(t *testing.T) {
				c := n.run(t, m, options{stdin: true, args: []string{"sh", "-c", fmt.Sprintf("read line; exit %d", code)}})
				c.nap()
				c.rise()
				c.say("go\n")
				c.wantExit("", code)
				if got := c.delete("").GetExitStatus(); got != code {
					t.Fatalf("Delete answers status %d, want %d", got, code)
				}
				c.shutdown()
			})
		}
	})
	check(t, "no such program", func(t *testing.T) {
		c := n.prepare(t, mood{}, options{args: []string{"/no/such/program"}})
		c.connect(c.startShim())
		_, err := c.task.Create(c.ctx(), c.createRequest())
		if err == nil {
			_, err = c.task.Start(c.ctx(), &taskapi.StartRequest{ID: c.id})
		}
		if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
			t.Fatalf("a container without its program: %v", err)
		}
	})
}

func TestWait(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "by many", func(t *testing.T) { waitByMany(t, n, m) })
		check(t, "through sleep", func(t *testing.T) {
			c := n.run(t, m, options{args: sleeper})
			done := make(chan uint32, 1)
			go func() { done <- c.wait("") }()
			for range 2 {
				c.nap()
				c.rise()
			}
			select {
			case s := <-done:
				t.Fatalf("Wait answered %d while it lives", s)
			default:
			}
			c.kill(syscall.SIGTERM)
			if s := <-done; s != 143 {
				t.Fatalf("exit status %d", s)
			}
		})
	})
}

// waitByMany asks from before the start until after the end, on connections of their own.
func waitByMany(t *testing.T, n *node, m mood) {
	const many = 20
	c := n.create(t, m, options{args: sleeper})
	got := make(chan uint32, 2*many)
	ask := func() {
		for range many {
			conn, err := c.dial()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				defer conn.Close()
				r, _ := taskapi.NewTTRPCTaskClient(conn).Wait(c.ctx(), &taskapi.WaitRequest{ID: c.id})
				got <- r.GetExitStatus()
			}()
		}
	}
	ask()
	c.start()
	c.nap()
	c.kill(syscall.SIGKILL)
	c.wantExit("", 137)
	ask()
	for range 2 * many {
		if s := <-got; s != 137 {
			t.Fatalf("exit status %d", s)
		}
	}
}

func TestConnect(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		c := n.create(t, m, options{args: sleeper})
		for _, at := range []struct {
			name string
			step func()
		}{{"created", func() {}}, {"running", func() { c.start(); c.nap() }}, {"stopped", func() { c.kill(syscall.SIGKILL); c.wantExit("", 137) }}} {
			check(t, at.name, func(t *testing.T) {
				at.step()
				r, err := c.task.Connect(c.ctx(), &taskapi.ConnectRequest{ID: c.id})
				if err != nil || r.GetTaskPid() != c.pid || !alive(r.GetShimPid()) {
					t.Fatalf("Connect answers %v, %v", r, err)
				}
				p, err := c.task.Pids(c.ctx(), &taskapi.PidsRequest{ID: c.id})
				if err != nil || len(p.GetProcesses()) == 0 || p.GetProcesses()[0].GetPid() != c.pid {
					t.Fatalf("Pids answers %v, %v", p, err)
				}
			})
		}
		check(t, "Shutdown is for the last", func(t *testing.T) {
			if _, err := c.task.Shutdown(c.ctx(), &taskapi.ShutdownRequest{ID: c.id}); err != nil {
				t.Fatalf("Shutdown with a container: %v", err)
			}
			c.wantStatus(tasktypes.Status_STOPPED)
			c.delete("")
			c.shutdown()
		})
	})
}

func TestDelete(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		check(t, "running is refused", func(t *testing.T) {
			c := n.run(t, m, options{args: sleeper})
			c.nap()
			_, err := c.task.Delete(c.ctx(), &taskapi.DeleteRequest{ID: c.id})
			if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
				t.Fatalf("Delete while it runs: %v", err)
			}
			c.end()
		})
		check(t, "twice is not found", func(t *testing.T) {
			c := n.run(t, m, options{args: sleeper})
			c.nap()
			c.kill(syscall.SIGKILL)
			c.wantExit("", 137)
			c.delete("")
			_, err := c.task.Delete(c.ctx(), &taskapi.DeleteRequest{ID: c.id})
			if !errdefs.IsNotFound(errgrpc.ToNative(err)) {
				t.Fatalf("a second Delete: %v", err)
			}
			c.shutdown()
		})
		check(t, "by the program, when the shim is gone", func(t *testing.T) { deleteByProgram(t, n, m) })
	})
	check(t, "created", func(t *testing.T) {
		c := n.create(t, mood{}, options{args: sleeper})
		c.delete("")
		c.shutdown()
	})
}

func deleteByProgram(t *testing.T, n *node, m mood) {
	c := n.run(t, m, options{args: sleeper})
	c.nap()
	if err := syscall.Kill(int(c.shimPid), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.awaitEnd()
	for range 2 {
		began := time.Now()
		var r taskapi.DeleteResponse
		unmarshal(t, c.call(nil, "-bundle", c.bundle, "delete"), &r)
		if r.GetExitStatus() != 137 || !r.GetExitedAt().IsValid() {
			t.Fatalf("delete answers %v", &r)
		}
		if took := time.Since(began); took > 5*time.Second {
			t.Fatalf("delete took %v: containerd waits 5 s", took)
		}
		if alive(c.pid) {
			t.Fatal("the task's process is still there")
		}
	}
	if m.asleep { // its snapshot stays, for the next container of this name
		if err := os.RemoveAll(n.DataDir()); err != nil {
			t.Fatal(err)
		}
	}
}
