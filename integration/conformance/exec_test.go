package conformance

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"testing"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

type execOptions struct {
	args  []string
	stdin bool
	quiet bool // no streams at all

	terminal bool
	misled   bool // its specification says the opposite of terminal
}

// A process is an exec in a container.
type process struct {
	*container
	exec string
	out  *sink
	in   *os.File
}

// exec registers a process.
func (c *container) exec(o execOptions) *process {
	c.t.Helper()
	p := &process{container: c, exec: newID()}
	spec, err := json.Marshal(specs.Process{
		Args: o.args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin:/"}, Terminal: o.terminal != o.misled,
	})
	if err != nil {
		c.t.Fatal(err)
	}
	r := &taskapi.ExecProcessRequest{ID: c.id, ExecID: p.exec, Terminal: o.terminal, Spec: &anypb.Any{
		TypeUrl: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: spec}}
	if !o.quiet {
		mkfifo(c.t, c.stream(p.exec))
		p.out, r.Stdout = collect(c.t, c.stream(p.exec)), c.stream(p.exec)
		c.t.Cleanup(p.out.close)
	}
	if o.stdin {
		mkfifo(c.t, c.stream(p.exec+"-in"))
		p.in, r.Stdin = c.openInput(p.exec+"-in"), c.stream(p.exec+"-in")
		c.t.Cleanup(func() { _ = p.in.Close() })
	}
	if _, err := c.task.Exec(c.ctx(), r); err != nil {
		c.t.Fatalf("Exec: %v", err)
	}
	return p
}

// run starts the process.
func (p *process) run() {
	p.t.Helper()
	r, err := p.task.Start(p.ctx(), &taskapi.StartRequest{ID: p.id, ExecID: p.exec})
	if err != nil || r.GetPid() == 0 {
		p.t.Fatalf("start of an exec: %v, %v", r, err)
	}
}

func (p *process) wantExit(status uint32) {
	p.t.Helper()
	p.container.wantExit(p.exec, status)
}

func TestExec(t *testing.T) {
	n := newNode(t, nil)
	moods(t, func(t *testing.T, m mood) {
		c := n.run(t, m, options{args: sleeper})
		for _, code := range []uint32{0, 1, 2, 42, 127, 255} {
			check(t, fmt.Sprint("exit code ", code), func(t *testing.T) {
				c.nap()
				p := c.exec(execOptions{args: []string{"sh", "-c", fmt.Sprint("exit ", code)}})
				p.run()
				p.wantExit(code)
				if got := c.delete(p.exec).GetExitStatus(); got != code {
					t.Fatalf("Delete answers status %d", got)
				}
			})
		}
		check(t, "streams", func(t *testing.T) { c.nap(); execStreams(t, c) })
		check(t, "all of the output", func(t *testing.T) { c.nap(); execOutput(t, c) })
		check(t, "terminal", func(t *testing.T) { c.nap(); execTerminal(t, c, false) })
		check(t, "terminal by the request alone", func(t *testing.T) { c.nap(); execTerminal(t, c, true) })
		check(t, "terminal by the specification alone", func(t *testing.T) { c.nap(); execNoTerminal(t, c) })
		check(t, "no streams", func(t *testing.T) {
			c.nap()
			p := c.exec(execOptions{args: []string{"sh", "-c", "echo nobody; exit 5"}, quiet: true})
			p.run()
			p.wantExit(5)
			c.delete(p.exec)
		})
		check(t, "no such program", func(t *testing.T) { c.nap(); execMissing(t, c) })
		check(t, "states", func(t *testing.T) { c.nap(); execStates(t, c) })
		check(t, "signal", func(t *testing.T) {
			c.nap()
			p := c.exec(execOptions{args: sleeper})
			p.run()
			if _, err := c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, ExecID: p.exec, Signal: 9}); err != nil {
				t.Fatalf("kill of an exec: %v", err)
			}
			p.wantExit(137)
			c.delete(p.exec)
			c.wantStatus(tasktypes.Status_RUNNING)
		})
		check(t, "ends with the container", func(t *testing.T) {
			c.nap()
			p := c.exec(execOptions{args: sleeper})
			p.run()
			c.kill(syscall.SIGKILL)
			p.wantExit(137)
			c.wantExit("", 137)
			c.delete(p.exec)
			c.delete("")
		})
		c.shutdown()
	})
}

func execStreams(t *testing.T, c *container) {
	p := c.exec(execOptions{args: []string{"sh", "-c", "cat; echo done"}, stdin: true})
	p.run()
	if _, err := io.WriteString(p.in, "there\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the echo", func() bool { return p.out.text() == "there\n" })
	if _, err := c.task.CloseIO(c.ctx(), &taskapi.CloseIORequest{ID: c.id, ExecID: p.exec, Stdin: true}); err != nil {
		t.Fatalf("CloseIO: %v", err)
	}
	p.wantExit(0)
	c.delete(p.exec)
	<-p.out.done
	if got := p.out.text(); got != "there\ndone\n" {
		t.Fatalf("output %q", got)
	}
}

func execOutput(t *testing.T, c *container) {
	const size = 8 << 20
	p := c.exec(execOptions{args: []string{"sh", "-c", fmt.Sprintf("yes | head -c %d", size)}})
	p.run()
	p.wantExit(0)
	c.delete(p.exec)
	<-p.out.done
	if got := p.out.size(); got != size {
		t.Fatalf("%d of %d bytes came out", got, size)
	}
}

// execTerminal writes more than a pty holds: a write that has to wait must lose nothing.
func execTerminal(t *testing.T, c *container, misled bool) {
	p := c.exec(execOptions{args: []string{"sh", "-c", "test -t 1 && seq -s ' ' 300000"}, terminal: true, misled: misled})
	p.run()
	p.wantExit(0)
	c.delete(p.exec)
	<-p.out.done
	if got := p.out.text(); !strings.HasPrefix(got, "1 2 3 ") || !strings.HasSuffix(got, " 299999 300000\r\n") {
		t.Fatalf("%d bytes came out: %.20q…%q", len(got), got, got[max(0, len(got)-20):])
	}
}

func execNoTerminal(t *testing.T, c *container) {
	p := c.exec(execOptions{args: []string{"sh", "-c", "test -t 1 || echo not a terminal; exit 6"}, misled: true})
	p.run()
	p.wantExit(6)
	c.delete(p.exec)
	<-p.out.done
	if got := p.out.text(); got != "not a terminal\n" {
		t.Fatalf("output %q", got)
	}
}

func execMissing(t *testing.T, c *container) {
	p := c.exec(execOptions{args: []string{"/no/such/program"}})
	_, err := c.task.Start(c.ctx(), &taskapi.StartRequest{ID: c.id, ExecID: p.exec})
	if err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Fatalf("an exec without its program: %v", err)
	}
	if s := c.state(p.exec); s.GetStatus() != tasktypes.Status_STOPPED || s.GetExitStatus() == 0 {
		t.Fatalf("its state: %v", s)
	}
	c.delete(p.exec)
	c.wantStatus(tasktypes.Status_RUNNING)
}

func execStates(t *testing.T, c *container) {
	want := func(p *process, status tasktypes.Status) {
		t.Helper()
		if s := c.state(p.exec); s.GetStatus() != status || s.GetExecID() != p.exec {
			t.Fatalf("state %v, want %v", s, status)
		}
	}
	p := c.exec(execOptions{args: []string{"sleep", "1000"}})
	want(p, tasktypes.Status_CREATED)
	_, err := c.task.Exec(c.ctx(), &taskapi.ExecProcessRequest{ID: c.id, ExecID: p.exec, Spec: &anypb.Any{Value: []byte(`{"args":["true"]}`)}})
	if !errdefs.IsAlreadyExists(errgrpc.ToNative(err)) {
		t.Fatalf("a second exec of that name: %v", err)
	}
	p.run()
	want(p, tasktypes.Status_RUNNING)
	if _, err := c.task.Start(c.ctx(), &taskapi.StartRequest{ID: c.id, ExecID: p.exec}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Fatalf("a second start: %v", err)
	}
	if _, err := c.task.Delete(c.ctx(), &taskapi.DeleteRequest{ID: c.id, ExecID: p.exec}); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
		t.Fatalf("Delete while it runs: %v", err)
	}
	if _, err := c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, ExecID: p.exec, Signal: 15}); err != nil {
		t.Fatalf("kill: %v", err)
	}
	p.wantExit(143)
	want(p, tasktypes.Status_STOPPED)
	c.delete(p.exec)
	if _, err := c.task.State(c.ctx(), &taskapi.StateRequest{ID: c.id, ExecID: p.exec}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Fatalf("State after Delete: %v", err)
	}
	if _, err := c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, ExecID: p.exec, Signal: 15}); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Fatalf("kill after Delete: %v", err)
	}
}

func unmarshal(t *testing.T, data []byte, m proto.Message) {
	t.Helper()
	if err := proto.Unmarshal(data, m); err != nil {
		t.Fatalf("%q: %v", data, err)
	}
}
