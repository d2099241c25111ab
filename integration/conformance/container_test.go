package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// options of a container. The zero value, with arguments, is one that reads nothing and whose output is collected.
type options struct {
	id          string // made up when empty
	args        []string
	stdin       bool
	terminal    bool
	misled      bool              // the specification says the opposite of terminal
	unread      bool              // nobody reads its output until the test does
	stdout      string            // a URI instead of a FIFO
	network     string            // path of a network namespace
	memory      int64             // limit in bytes
	group       string            // name of the control group, instead of one of the node's
	annotations map[string]string // of ours
	foreign     map[string]string // annotations of others
	atStart     proto.Message     // runtime options, as `start` gets them
	old         bool              // the caller is containerd 1.6, which says less in the environment
}

// A container is a bundle and its shim.
type container struct {
	t    *testing.T
	n    *node
	mood mood
	opts options

	id, bundle, address string
	shimPid             uint32
	conn                *ttrpc.Client
	task                taskapi.TTRPCTaskService
	shim                shimv1.TTRPCShimClient
	out, errs, log      *sink
	stdin               *os.File
	pid                 uint32
}

const shimName = "containerd-shim-hibernate-v1"

// sleeper is a program that does nothing for long and ends by any signal.
var sleeper = []string{"sleep", "1000"}

// create makes a container and its shim, as far as Create.
func (n *node) create(t *testing.T, m mood, o options) *container {
	t.Helper()
	c := n.prepare(t, m, o)
	c.connect(c.startShim())
	r, err := c.task.Create(c.ctx(), c.createRequest())
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	c.pid = r.GetPid()
	return c
}

// run is create and Start.
func (n *node) run(t *testing.T, m mood, o options) *container {
	t.Helper()
	c := n.create(t, m, o)
	c.start()
	return c
}

// prepare makes the bundle and the client's ends of the streams.
func (n *node) prepare(t *testing.T, m mood, o options) *container {
	t.Helper()
	c := &container{t: t, n: n, mood: m, opts: o, id: o.id}
	if c.id == "" {
		c.id = newID()
	}
	c.bundle = filepath.Join(n.Dir, "bundles", c.id)
	for _, dir := range []string{"rootfs", "upper", "work"} {
		if err := os.MkdirAll(filepath.Join(c.bundle, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { c.drop() })
	spec, err := json.Marshal(n.spec(c.id, o))
	if err == nil {
		err = os.WriteFile(filepath.Join(c.bundle, "config.json"), spec, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.openStreams()
	return c
}

func (c *container) ctx() context.Context { return c.n.context(c.t) }

// startShim calls `start` as a containerd of today does, and returns the address.
func (c *container) startShim() string {
	c.t.Helper()
	version, address := bootstrapped(c.t, c.call(c.bootstrap(), "start"))
	if version != 3 {
		c.t.Fatalf("start answered version %d", version)
	}
	return address
}

// bootstrap is what a containerd of today gives `start` to read.
func (c *container) bootstrap() []byte {
	c.t.Helper()
	p := &bootstrap.BootstrapParams{
		InstanceID: c.id, Namespace: c.n.Name, ContainerdTtrpcAddress: c.n.events.address, ContainerdGrpcAddress: c.n.Address(),
		LogLevel: bootstrap.LogLevel_LOG_LEVEL_INFO,
	}
	if c.opts.atStart != nil {
		if err := p.AddExtension(c.opts.atStart); err != nil {
			c.t.Fatal(err)
		}
	}
	data, err := proto.Marshal(p)
	if err != nil {
		c.t.Fatal(err)
	}
	return data
}

// call runs the shim's program in the bundle and returns what it printed; saying anything on standard error is a failure.
func (c *container) call(stdin []byte, action ...string) []byte {
	c.t.Helper()
	args := []string{"-c", `cd "$1" && shift && exec "$@"`, "sh", c.bundle, shimName,
		"-namespace", c.n.Name, "-address", c.n.Address(), "-publish-binary", "/bin/false", "-id", c.id}
	cmd := c.n.Command(c.ctx(), "sh", append(args, action...)...)
	cmd.Env = append(cmd.Env, "TTRPC_ADDRESS="+c.n.events.address)
	if !c.opts.old {
		cmd.Env = append(cmd.Env, "GRPC_ADDRESS="+c.n.Address(), "NAMESPACE="+c.n.Name, "MAX_SHIM_VERSION=2")
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 && action[0] == "start" {
		c.t.Fatalf("%v: %v: %s", action, err, stderr.String())
	}
	return stdout.Bytes()
}

func (c *container) connect(address string) {
	c.t.Helper()
	c.address = address
	conn, err := c.dial()
	if err != nil {
		c.t.Fatalf("connect to the shim: %v", err)
	}
	c.conn, c.task, c.shim = conn, taskapi.NewTTRPCTaskClient(conn), shimv1.NewTTRPCShimClient(conn)
	r, err := c.task.Connect(c.ctx(), &taskapi.ConnectRequest{ID: c.id})
	if err != nil {
		c.t.Fatalf("Connect: %v", err)
	}
	c.shimPid = r.GetShimPid()
}

func (c *container) dial() (*ttrpc.Client, error) {
	conn, err := net.DialTimeout("unix", c.n.Path(strings.TrimPrefix(c.address, "unix://")), stepLimit)
	if err != nil {
		return nil, err
	}
	return ttrpc.NewClient(conn), nil
}

func (c *container) createRequest() *taskapi.CreateTaskRequest {
	c.t.Helper()
	config, err := typeurl.MarshalAnyToProto(&runtimeoptions.Options{ConfigPath: c.n.config})
	if err != nil {
		c.t.Fatal(err)
	}
	r := &taskapi.CreateTaskRequest{
		ID: c.id, Bundle: c.bundle, Terminal: c.opts.terminal, Options: config,
		Rootfs: []*types.Mount{{Type: "overlay", Source: "overlay", Options: []string{
			"lowerdir=" + c.n.rootfs, "upperdir=" + filepath.Join(c.bundle, "upper"), "workdir=" + filepath.Join(c.bundle, "work")}}},
		Stdout: c.stream("stdout"), Stderr: c.stream("stderr"),
	}
	if c.opts.stdin {
		r.Stdin = c.stream("stdin")
	}
	if c.opts.stdout != "" {
		r.Stdout = c.opts.stdout
	}
	if c.opts.terminal {
		r.Stderr = ""
	}
	return r
}

func (c *container) start() {
	c.t.Helper()
	r, err := c.task.Start(c.ctx(), &taskapi.StartRequest{ID: c.id})
	if err != nil {
		c.t.Fatalf("start: %v", err)
	}
	if r.GetPid() != c.pid || c.pid == 0 {
		c.t.Fatalf("Start answers pid %d, Create answered %d", r.GetPid(), c.pid)
	}
}

// nap puts the container to sleep where the mood asks for it.
func (c *container) nap() {
	c.t.Helper()
	if c.mood.asleep {
		c.sleep()
	}
}

func (c *container) sleep() {
	c.t.Helper()
	if _, err := c.shim.Hibernate(c.ctx(), &shimv1.HibernateRequest{Reason: "test", Manual: true}); err != nil {
		c.t.Fatalf("hibernate: %v", err)
	}
	if s := c.workload(); s != "asleep" {
		c.t.Fatalf("after its hibernation it is %s", s)
	}
}

// rise wakes a container that naps, or waits until it has woken.
func (c *container) rise() {
	c.t.Helper()
	if !c.mood.asleep {
		return
	}
	r, err := c.shim.Wake(c.ctx(), &shimv1.WakeRequest{Reason: "test"})
	if err != nil || r.GetTransition().GetOutcome() != "restored" {
		c.t.Fatalf("wake: %v, %v", r, err)
	}
}

// workload is the state that the shim's own service tells.
func (c *container) workload() string {
	c.t.Helper()
	s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
	if err != nil {
		c.t.Fatalf("Status: %v", err)
	}
	return s.GetState()
}

func (c *container) state(exec string) *taskapi.StateResponse {
	c.t.Helper()
	r, err := c.task.State(c.ctx(), &taskapi.StateRequest{ID: c.id, ExecID: exec})
	if err != nil {
		c.t.Fatalf("State: %v", err)
	}
	return r
}

func (c *container) wantStatus(want tasktypes.Status) {
	c.t.Helper()
	if got := c.state("").GetStatus(); got != want {
		c.t.Fatalf("state %v, want %v", got, want)
	}
}

func (c *container) kill(s syscall.Signal) {
	c.t.Helper()
	if _, err := c.task.Kill(c.ctx(), &taskapi.KillRequest{ID: c.id, Signal: uint32(s)}); err != nil {
		c.t.Fatalf("kill %v: %v", s, err)
	}
}

// wait returns the exit status of the container, or of an exec.
func (c *container) wait(exec string) uint32 {
	c.t.Helper()
	r, err := c.task.Wait(c.ctx(), &taskapi.WaitRequest{ID: c.id, ExecID: exec})
	if err != nil {
		c.t.Fatalf("Wait: %v", err)
	}
	if at := r.GetExitedAt().AsTime(); time.Since(at) > stepLimit || time.Until(at) > time.Second {
		c.t.Fatalf("exited at %v", at)
	}
	return r.GetExitStatus()
}

func (c *container) wantExit(exec string, want uint32) {
	c.t.Helper()
	if got := c.wait(exec); got != want {
		c.t.Fatalf("exit status %d, want %d; stderr: %s", got, want, c.errs.tail())
	}
}

func (c *container) delete(exec string) *taskapi.DeleteResponse {
	c.t.Helper()
	r, err := c.task.Delete(c.ctx(), &taskapi.DeleteRequest{ID: c.id, ExecID: exec})
	if err != nil {
		c.t.Fatalf("Delete: %v", err)
	}
	return r
}

// shutdown ends the shim, as containerd does after Delete, and waits until it is gone.
func (c *container) shutdown() {
	c.t.Helper()
	if _, err := c.task.Shutdown(c.ctx(), &taskapi.ShutdownRequest{ID: c.id}); err != nil && !errors.Is(err, ttrpc.ErrClosed) {
		c.t.Fatalf("Shutdown: %v", err)
	}
	c.awaitEnd()
}

func (c *container) awaitEnd() {
	c.t.Helper()
	eventually(c.t, "the shim's end", func() bool { return !alive(c.shimPid) })
}

// end kills, deletes and shuts down what runs.
func (c *container) end() {
	c.t.Helper()
	c.kill(syscall.SIGKILL)
	c.wantExit("", 137)
	c.delete("")
	c.shutdown()
}

// drop removes what is left of the container, whatever state a test left it in.
func (c *container) drop() {
	if c.conn != nil && alive(c.shimPid) {
		ctx := c.ctx()
		_, _ = c.task.Kill(ctx, &taskapi.KillRequest{ID: c.id, Signal: uint32(syscall.SIGKILL)})
		_, _ = c.task.Delete(ctx, &taskapi.DeleteRequest{ID: c.id})
		_, _ = c.task.Shutdown(ctx, &taskapi.ShutdownRequest{ID: c.id})
		c.awaitEnd()
	}
	if c.conn != nil {
		_ = c.conn.Close()
	}
	c.call(nil, "-bundle", c.bundle, "delete")
	c.closeStreams()
	if c.t.Failed() {
		c.t.Logf("--- the log of the shim of %s\n%s", c.id, c.log.text())
	}
	_ = os.RemoveAll(c.bundle)
}

// alive says whether a process is there and no zombie.
func alive(pid uint32) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

func (n *node) spec(id string, o options) *specs.Spec {
	namespaces := []specs.LinuxNamespace{{Type: "pid"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"}, {Type: "network", Path: o.network}}
	capabilities := []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_BIND_SERVICE", "CAP_SETUID", "CAP_SETGID"}
	s := &specs.Spec{
		Version: "1.2.0", Hostname: id, Root: &specs.Root{Path: "rootfs"}, Annotations: map[string]string{},
		Process: &specs.Process{
			Args: o.args, Cwd: "/", Env: []string{"PATH=/usr/bin:/bin:/"}, Terminal: o.terminal != o.misled,
			Capabilities: &specs.LinuxCapabilities{Bounding: capabilities, Effective: capabilities, Permitted: capabilities},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"}, {Destination: "/dev", Type: "tmpfs", Source: "tmpfs"},
			{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"},
		},
		Linux: &specs.Linux{Namespaces: namespaces, CgroupsPath: "/" + n.Name + "/" + id, Resources: &specs.LinuxResources{}},
	}
	for k, v := range o.annotations {
		s.Annotations["io.containerd.hibernate/"+k] = v
	}
	maps.Copy(s.Annotations, o.foreign)
	if o.group != "" {
		s.Linux.CgroupsPath = o.group
	}
	if o.memory != 0 {
		s.Linux.Resources.Memory = &specs.LinuxMemory{Limit: &o.memory}
	}
	return s
}
