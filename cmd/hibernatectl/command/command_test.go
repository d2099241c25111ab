package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// host is a run directory, without a daemon at first.
type host struct {
	t      *testing.T
	runDir string
}

func newHost(t *testing.T, shims ...*shimtest.Shim) host {
	t.Helper()
	dir, err := os.MkdirTemp("", "ctl") // short enough for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, shim := range shims {
		shim.Record(t, dir)
	}
	return host{t, dir}
}

// daemon runs hibernated until the test ends.
func (h host) daemon() {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- daemon.Run(ctx, daemon.Options{RunDir: h.runDir, Version: "v1", Ready: func() { close(ready) }})
	}()
	<-ready
	h.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
}

// run runs hibernatectl, and wants an exit code.
func (h host) run(want int, args ...string) (stdout, stderr string) {
	h.t.Helper()
	var out, err bytes.Buffer
	if got := Main(h.t.Context(), append([]string{"--run-dir", h.runDir}, args...), &out, &err); got != want {
		h.t.Fatalf("%v: exit code %d, want %d\n%s%s", args, got, want, out.String(), err.String())
	}
	return out.String(), err.String()
}

func wantText(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%q is missing in:\n%s", part, text)
		}
	}
}

func TestListWithoutADaemon(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"), shimtest.Start(t, "other", "nginx"))
	out, warnings := h.run(exitOK, "ls")
	wantText(t, out, "default     redis   awake", "other       nginx   awake")
	wantText(t, warnings, "hibernated is not running")
}

func TestListWithADaemon(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	h.daemon()
	var list struct {
		Workloads []struct {
			Status struct{ State string }
			Idle   struct {
				TimeoutMs string `json:"timeout_ms"`
			}
		}
	}
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		out, _ := h.run(exitOK, "ls", "-o", "json")
		if err := json.Unmarshal([]byte(out), &list); err != nil {
			t.Fatal(err)
		}
		if list.Workloads[0].Idle.TimeoutMs == "300000" {
			return
		}
	}
	t.Errorf("the daemon's idle clock is missing: %v", list)
}

func TestListTellsTheUnreachable(t *testing.T) {
	hung, dead := shimtest.Start(t, "default", "hung"), shimtest.Start(t, "default", "dead")
	h := newHost(t, hung, dead, shimtest.Start(t, "default", "well"))
	hung.Hang(true)
	dead.Stop()
	if err := handover.WriteRecord(h.runDir, handover.Record{Namespace: "default", ID: "killed", Pid: 1 << 30, StartTime: 1}); err != nil {
		t.Fatal(err)
	}
	out, _ := h.run(exitOK, "ls", "--timeout", "300ms")
	wantText(t, out, "hung     unreachable", "dead     unreachable", "killed   unreachable", "well     awake")
}

func TestHibernateAndWake(t *testing.T) {
	shim := shimtest.Start(t, "default", "redis")
	h := newHost(t, shim)
	out, _ := h.run(exitOK, "hibernate", "redis")
	wantText(t, out, "default/redis is asleep (12 ms, snapshot 24.0 MiB)")
	if got := shim.Hibernations()[0]; !got.GetManual() || got.GetReason() != "request" {
		t.Errorf("request %v", got)
	}
	out, _ = h.run(exitOK, "wake", "default/red")
	wantText(t, out, "default/redis is awake (restored in 12 ms)")
	out, _ = h.run(exitOK, "wake", "redis", "-o", "json")
	wantText(t, out, `"transition": {`)
}

func TestRefusal(t *testing.T) {
	shim := shimtest.Start(t, "default", "redis")
	shim.OnHibernate(func(context.Context) error {
		return fmt.Errorf("a terminal is attached: %w", errdefs.ErrFailedPrecondition)
	})
	_, message := newHost(t, shim).run(exitRefused, "hibernate", "redis")
	if message != "hibernatectl: default/redis: hibernate: a terminal is attached\n" {
		t.Errorf("message %q", message)
	}
}

func TestWakeWait(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := uint32(l.Addr().(*net.TCPAddr).Port)
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	shim.Update(func(s *shimv1.StatusResponse, _ *shimv1.ActivityResponse) {
		s.Ports, s.Addresses = []uint32{port}, []string{"127.0.0.1/8"}
	})
	h := newHost(t, shim)
	h.run(exitOK, "wake", "--wait", "redis")
	_ = l.Close()
	_, message := h.run(exitUnreachable, "wake", "--wait", "redis", "--timeout", "200ms")
	wantText(t, message, fmt.Sprintf("none of its ports %d accepts", port))
}

func TestExitCodes(t *testing.T) {
	hung := shimtest.Start(t, "default", "hung")
	hung.Hang(true)
	h := newHost(t, hung, shimtest.Start(t, "a", "twin"), shimtest.Start(t, "b", "twin"))
	for _, test := range []struct {
		args    string
		code    int
		message string
	}{
		{"ls extra", exitUsage, "no arguments are wanted"},
		{"wake", exitUsage, "one workload is wanted"},
		{"wake a b", exitUsage, "one workload is wanted"},
		{"snooze", exitUsage, `unknown command "snooze"`},
		{"ls --long", exitUsage, "unknown flag"},
		{"ls -o yaml", exitUsage, "neither table nor json"},
		{"ls --timeout -1s", exitUsage, "negative"},
		{"inspect nobody", exitNotFound, "there is a/twin, b/twin, default/hung"},
		{"inspect twin", exitNotFound, "ambiguous: a/twin, b/twin"},
		{"inspect hung --timeout 200ms", exitUnreachable, "default/hung"},
		{"why-awake hung --timeout 200ms", exitUnreachable, "default/hung"},
		{"wake hung --timeout 200ms", exitUnreachable, "default/hung"},
		{"inspect a/twin", exitOK, ""},
	} {
		t.Run(test.args, func(t *testing.T) {
			h := host{t, h.runDir}
			_, message := h.run(test.code, strings.Fields(test.args)...)
			wantText(t, message, test.message)
		})
	}
}

func TestWhyAwakeWithAndWithoutADaemon(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	out, _ := h.run(exitOK, "why-awake", "redis")
	wantText(t, out, "hibernated is not running", "[no-daemon]")
	h.daemon()
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		if out, _ = h.run(exitOK, "why-awake", "redis"); strings.Contains(out, "[fresh]") {
			break
		}
	}
	wantText(t, out, "default/redis is awake, and sleeps in", "[fresh]", "[min-awake]", "mode auto")
}

func TestVersion(t *testing.T) {
	h := newHost(t)
	out, _ := h.run(exitOK, "version")
	wantText(t, out, "hibernated    not running")
	h.daemon()
	out, _ = h.run(exitOK, "version", "-o", "json")
	wantText(t, out, `"version": "v1"`)
}

func TestResolve(t *testing.T) {
	keys := []node.Key{{Namespace: "a", ID: "web"}, {Namespace: "a", ID: "web-2"}, {Namespace: "b", ID: "db"}, {Namespace: "b", ID: "web-3"}}
	for name, want := range map[string]string{
		"web": "a/web", "a/web": "a/web", "web-2": "a/web-2", "d": "b/db", "b/w": "b/web-3",
		"web-": "ambiguous", "a/": "no workload", "": "no workload", "b/web": "b/web-3", "c/db": "no workload",
	} {
		got, err := resolve(keys, name)
		text := got.String()
		var unknown *unknownError
		if errors.As(err, &unknown) {
			text = err.Error()
		}
		if !strings.Contains(text, want) {
			t.Errorf("%q: %s, want %s", name, text, want)
		}
	}
}
