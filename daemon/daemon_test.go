package daemon_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
)

// node is a directory of sockets, and the daemon that runs in it.
type node struct {
	t       *testing.T
	runDir  string
	metrics string
	backend string // where workloads are dialled
	orphans time.Duration
	change  func(*daemon.Options) // of the next run; may be nil
	log     testlog.Buffer
	stop    context.CancelFunc
	ended   chan error
}

func newNode(t *testing.T) *node {
	t.Helper()
	dir, err := os.MkdirTemp("", "node") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	before := runtime.NumGoroutine()
	n := &node{t: t, runDir: dir, metrics: freeAddress(t), backend: echo(t)}
	t.Cleanup(func() {
		n.halt()
		_ = os.RemoveAll(dir)
		eventually(t, "goroutines end", func() bool { return runtime.NumGoroutine() <= before+8 })
	})
	return n
}

// run starts a daemon and waits until it listens.
func (n *node) run() {
	n.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready := make(chan struct{})
	n.stop, n.ended = stop, make(chan error, 1)
	go func() {
		o := daemon.Options{
			RunDir: n.runDir, MetricsAddress: n.metrics, Version: "v0-test", ScanEvery: 20 * time.Millisecond,
			Grace: 100 * time.Millisecond, Orphans: n.orphans, Ready: func() { close(ready) },
			Log:    slog.New(slog.NewTextHandler(&n.log, nil)),
			Policy: idle.Policy{Interval: 20 * time.Millisecond},
			Dial: func(ctx context.Context, _ *os.File, _, _ netip.AddrPort) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, "tcp", n.backend)
			},
		}
		if n.change != nil {
			n.change(&o)
		}
		n.ended <- daemon.Run(ctx, o)
	}()
	select {
	case <-ready:
	case err := <-n.ended:
		n.t.Fatal("the daemon did not start:", err)
	}
}

// halt ends the daemon in order.
func (n *node) halt() {
	if n.stop == nil {
		return
	}
	n.stop()
	n.stop = nil
	select {
	case err := <-n.ended:
		if err != nil {
			n.t.Error("the daemon ended with", err)
		}
	case <-time.After(20 * time.Second):
		n.t.Error("the daemon does not end")
	}
}

func (n *node) api() daemonv1.TTRPCDaemonClient {
	conn, err := net.Dial("unix", filepath.Join(n.runDir, "api.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	n.t.Cleanup(func() { _ = client.Close() })
	return daemonv1.NewTTRPCDaemonClient(client)
}

// list returns the daemon's workloads by id.
func (n *node) list() map[string]*daemonv1.Workload {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	resp, err := n.api().List(ctx, &daemonv1.ListRequest{})
	if err != nil {
		n.t.Fatal(err)
	}
	all := make(map[string]*daemonv1.Workload)
	for _, w := range resp.GetWorkloads() {
		all[w.GetStatus().GetId()] = w
	}
	return all
}

// register hands listeners over for a shim, one for each given port number, as a shim does.
func (n *node) register(shim *shimtest.Shim, listeners map[uint16]*os.File) *handover.Conn {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	conn, err := handover.Dial(ctx, filepath.Join(n.runDir, "hibernated.sock"))
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = conn.Close() })
	if err := hello(conn, shim, listeners); err != nil {
		n.t.Fatal(err)
	}
	return conn
}

func hello(conn *handover.Conn, shim *shimtest.Shim, listeners map[uint16]*os.File) error {
	h := helloOf(shim)
	h.Target = netip.MustParseAddr("127.0.0.1")
	kept, err := say(conn, h, listeners)
	for _, file := range kept {
		_ = file.Close()
	}
	return err
}

// helloOf is that of a workload that can't be reached, in a pod that goes with it.
func helloOf(shim *shimtest.Shim) handover.Hello {
	return handover.Hello{Namespace: shim.Namespace, ID: shim.ID, Address: shim.Address, Pid: os.Getpid()}
}

func say(conn *handover.Conn, h handover.Hello, listeners map[uint16]*os.File) (kept map[uint16]*os.File, err error) {
	namespace, err := os.Open(cmp.Or(h.PodPath, "/proc/self/ns/net"))
	if err != nil {
		return nil, err
	}
	defer namespace.Close()
	files := []*os.File{namespace}
	for port, file := range listeners {
		h.Ports = append(h.Ports, port)
		files = append(files, file)
	}
	return conn.Send(context.Background(), h, files)
}

// echo serves what sends back what it gets, until its end.
func echo(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

// listener makes a listening socket that belongs to the test, as it would to the shim.
func listener(t *testing.T) (address string, file *os.File) {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if file, err = l.File(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = file.Close() })
	return l.Addr().String(), file
}

func freeAddress(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// roundTrip connects, says something, and wants it back.
func roundTrip(address string) error {
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return speak(conn)
}

func speak(conn net.Conn) error {
	if _, err := conn.Write([]byte("hello")); err != nil {
		return err
	}
	answer := make([]byte, 5)
	if _, err := io.ReadFull(conn, answer); err != nil {
		return err
	}
	if string(answer) != "hello" {
		return errors.New("got " + string(answer))
	}
	return nil
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(10 * time.Second); ; {
		if condition() {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestConnectionIsHeldWokenAndDrained(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	address, file := listener(t)
	n.register(shim, map[uint16]*os.File{6379: file})
	var clients sync.WaitGroup
	for range 20 {
		clients.Go(func() {
			if err := roundTrip(address); err != nil {
				t.Error(err)
			}
		})
	}
	clients.Wait()
	wakes := shim.Wakes()
	if len(wakes) == 0 || wakes[0].GetReason() != "connection" || wakes[0].GetWakeId() == "" {
		t.Fatalf("wakes %v", wakes)
	}
	if got := n.list()["redis"].GetStatus().GetState(); got != "awake" {
		t.Errorf("state %s", got)
	}
	metric(t, n, `hibernate_wakes_total{outcome="restored",reason="connection"} 1`)
	metric(t, n, `hibernate_workloads{mode="auto",state="awake"} 1`)
	metric(t, n, `hibernate_proxy_bytes_total{direction="in"} 100`)
	metric(t, n, `hibernate_build_info{goversion="`+runtime.Version()+`",version="v0-test"} 1`)
}

func metric(t *testing.T, n *node, line string) {
	t.Helper()
	var text string
	defer func() {
		if t.Failed() {
			t.Log(text)
		}
	}()
	eventually(t, "metric "+line, func() bool {
		text = get(t, n, "/metrics", http.StatusOK)
		return strings.Contains(text, line+"\n")
	})
}

func get(t *testing.T, n *node, path string, want int) string {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + n.metrics + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != want {
		t.Fatalf("%s: status %s", path, resp.Status)
	}
	return string(body)
}

func TestHealth(t *testing.T) {
	n := newNode(t)
	n.run()
	if got := get(t, n, "/healthz", http.StatusOK); got != "ok\n" {
		t.Errorf("healthz says %q", got)
	}
}

func TestSecondDaemonIsKeptOut(t *testing.T) {
	n := newNode(t)
	n.run()
	err := daemon.Run(t.Context(), daemon.Options{RunDir: n.runDir})
	if !errors.Is(err, handover.ErrInUse) {
		t.Errorf("got %v, want ErrInUse", err)
	}
	if _, err := n.api().Version(t.Context(), &daemonv1.VersionRequest{}); err != nil {
		t.Error("the first daemon's API is gone:", err)
	}
}

func TestSocketsAreTheOwnersOnly(t *testing.T) {
	n := newNode(t)
	n.run()
	for _, name := range []string{"api.sock", "hibernated.sock"} {
		info, err := os.Stat(filepath.Join(n.runDir, name))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode != 0o600 {
			t.Errorf("%s has mode %o", name, mode)
		}
	}
}

// TestRestartLosesNobody: connections that come while no daemon runs wait in the shim's socket for the next one.
func TestRestartLosesNobody(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	shim.Record(t, n.runDir)
	address, file := listener(t)
	conn := n.register(shim, map[uint16]*os.File{6379: file})
	n.halt()
	if err := conn.Wait(t.Context()); err != nil {
		t.Fatal("the shim does not see that the daemon is gone:", err)
	}
	client, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	_ = client.SetDeadline(time.Now().Add(10 * time.Second))
	n.run()
	eventually(t, "the new daemon sees the sleeper by its record", func() bool {
		return n.list()["redis"].GetStatus().GetState() == "asleep"
	})
	n.register(shim, map[uint16]*os.File{6379: file})
	if err := speak(client); err != nil {
		t.Error(err)
	}
}

func TestWorkloadLeavesWithItsShim(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	_, file := listener(t)
	conn := n.register(shim, map[uint16]*os.File{6379: file})
	if n.list()["redis"] == nil {
		t.Fatal("not in the view after it has registered")
	}
	_ = conn.Close()
	eventually(t, "the workload leaves", func() bool { return n.list()["redis"] == nil })
	_, err := n.api().WhyAwake(t.Context(), &daemonv1.WhyAwakeRequest{Namespace: "default", Id: "redis"})
	if !strings.Contains(err.Error(), errdefs.ErrNotFound.Error()) {
		t.Errorf("got %v", err)
	}
}

func TestIdleWorkloadSleeps(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) {
		a.IdleTimeoutMs, a.MinAwakeMs, a.Packets = 100, 0, 17
	})
	shim.Record(t, n.runDir)
	eventually(t, "it sleeps", func() bool { return n.list()["redis"].GetStatus().GetState() == "asleep" })
	got := shim.Hibernations()
	if len(got) != 1 || got[0].GetReason() != "idle" || got[0].GetManual() || got[0].JudgedPackets == nil || got[0].GetJudgedPackets() != 17 {
		t.Errorf("hibernations %v", got)
	}
	metric(t, n, `hibernate_hibernations_total{outcome="slept"} 1`)
}

func TestHungShimBlocksNobody(t *testing.T) {
	n := newNode(t)
	hung := shimtest.Start(t, "default", "hung")
	hung.Hang(true)
	hung.Record(t, n.runDir)
	n.run()
	quick := shimtest.Start(t, "default", "quick")
	quick.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { a.IdleTimeoutMs, a.MinAwakeMs = 100, 0 })
	address, file := listener(t)
	n.register(quick, map[uint16]*os.File{80: file})
	_, hungFile := listener(t)
	n.register(hung, map[uint16]*os.File{80: hungFile})
	eventually(t, "the other one sleeps", func() bool { return n.list()["quick"].GetStatus().GetState() == "asleep" })
	if err := roundTrip(address); err != nil {
		t.Error(err)
	}
	eventually(t, "the hung one is told", func() bool { return n.list()["hung"].GetUnreachable() != "" })
	why, err := n.api().WhyAwake(t.Context(), &daemonv1.WhyAwakeRequest{Namespace: "default", Id: "hung"})
	if err != nil || why.GetReasons()[0].GetCode() != "unreachable" {
		t.Errorf("why-awake %v, %v", why, err)
	}
}

func TestWhyAwake(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) {
		a.Blockers = []*shimv1.Reason{{Code: "terminal", Detail: "a terminal is attached"}}
	})
	shim.Record(t, n.runDir)
	eventually(t, "the blocker is told", func() bool {
		why, err := n.api().WhyAwake(t.Context(), &daemonv1.WhyAwakeRequest{Namespace: "default", Id: "redis"})
		return err == nil && len(why.GetReasons()) > 0 && why.GetReasons()[0].GetCode() == "terminal" && why.GetIdle().GetSleepsInMs() == -1
	})
}
