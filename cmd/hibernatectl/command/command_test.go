package command

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
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
func (h host) daemon() { h.daemonWith(nil) }

func (h host) daemonWith(store *daemon.StoreOptions) {
	h.t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- daemon.Run(ctx, daemon.Options{
			RunDir: h.runDir, DataDir: filepath.Join(h.runDir, "data"), Version: "v1", Store: store, Ready: func() { close(ready) },
		})
	}()
	<-ready
	h.t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			h.t.Error(err)
		}
	})
}

// config writes a configuration file.
func (h host) config(text string) string {
	h.t.Helper()
	path := filepath.Join(h.runDir, "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		h.t.Fatal(err)
	}
	return path
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

func TestSnapshotsWithoutAStore(t *testing.T) {
	h := newHost(t)
	_, errs := h.run(exitUnreachable, "snapshots")
	wantText(t, errs, "hibernated is not running")
	h.daemon()
	for _, args := range [][]string{{"ls"}, {"verify", "web"}, {"gc", "--dry-run"}} {
		_, errs := h.run(exitRefused, append([]string{"snapshots"}, args...)...)
		wantText(t, errs, "no store is configured: set the key store")
	}
	out, _ := h.run(exitOK, "version")
	if strings.Contains(out, "store") {
		t.Errorf("version tells of a store: %s", out)
	}
	for _, args := range [][]string{{"frob"}, {"ls", "a", "b"}, {"verify"}, {"verify", "a", "0"}, {"verify", "a", "x"}, {"gc", "a", "b"}} {
		h.run(exitUsage, append([]string{"snapshots"}, args...)...)
	}
}

// TestSnapshotsOfAStore: an empty one, one that isn't there, and one whose objects are another's.
func TestSnapshotsOfAStore(t *testing.T) {
	bucket := memstore.NewBucket()
	var there atomic.Bool
	h := newHost(t)
	h.daemonWith(&daemon.StoreOptions{
		URL: "s3://bucket", Node: "node-1", Keys: durable.Keyring{Current: durable.InsecurePlaintext()},
		Open: func() (store.Store, error) {
			if !there.Load() {
				return nil, fmt.Errorf("%w: not mounted", store.ErrUnavailable)
			}
			return bucket.Store(), nil
		},
	})
	_, errs := h.run(exitUnreachable, "snapshots")
	wantText(t, errs, "not open")
	there.Store(true)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		if out, _ := h.run(exitOK, "version"); strings.Contains(out, "s3://bucket: fences") {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(out)
		}
	}
	tier, err := durable.New(durable.Config{Store: bucket.Store(), Keys: durable.Keyring{Current: durable.InsecurePlaintext()}, Node: "node-2"})
	if err != nil {
		t.Fatal(err)
	}
	l, err := tier.Lineage("default/0a")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Acquire(t.Context(), durable.Claim{}); err != nil {
		t.Fatal(err)
	}
	out, _ := h.run(exitOK, "snapshots", "ls")
	wantText(t, out, "node-2", "default/0a")
	out, _ = h.run(exitOK, "snapshots", "gc", "--dry-run")
	wantText(t, out, "0 objects (-) would be deleted")
	_, errs = h.run(exitNotFound, "snapshots", "verify", "default/0a")
	wantText(t, errs, "no snapshot")
	_, errs = h.run(exitNotFound, "snapshots", "ls", "nobody")
	wantText(t, errs, `"nobody"`, "hibernatectl snapshots ls")
	bucket.Alter("heads/default/0a", func([]byte) []byte { return []byte("{}") })
	out, _ = h.run(exitOK, "snapshots", "ls")
	wantText(t, out, "can't be read: ")
	_, errs = h.run(exitError, "snapshots", "gc")
	wantText(t, errs, "not all could be looked at")
}
