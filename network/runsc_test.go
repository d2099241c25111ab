package network_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// gvisor is a real sandbox with the test server in a network namespace.
type gvisor struct {
	runsc, root, bundle, id string
}

func newGvisor(t testing.TB, netns string) *gvisor {
	t.Helper()
	dir := t.TempDir()
	g := &gvisor{runsc: findRunsc(t), root: filepath.Join(dir, "runsc"), bundle: filepath.Join(dir, "bundle"), id: "sandbox"}
	rootfs := filepath.Join(g.bundle, "rootfs")
	for _, d := range []string{"tmp", "proc", "dev"} {
		fail(t, os.MkdirAll(filepath.Join(rootfs, d), 0o755))
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(rootfs, "server"), "../integration/testserver")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the test server: %v\n%s", err, out)
	}
	fail(t, os.WriteFile(filepath.Join(g.bundle, "config.json"), spec(netns), 0o600))
	t.Cleanup(func() {
		g.run(t, "delete", "--force", g.id)
		// runsc keeps a namespace mounted in its root.
		if err := unix.Unmount(filepath.Join(g.root, "null-netns"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
	return g
}

func spec(netns string) []byte {
	raw, _ := json.Marshal(map[string]any{
		"ociVersion": "1.0.2",
		"root":       map[string]any{"path": "rootfs"},
		"process": map[string]any{
			"args": []string{"/server"}, "cwd": "/", "env": []string{"PATH=/"}, "user": map[string]any{"uid": 0, "gid": 0},
		},
		"mounts": []any{map[string]any{"destination": "/proc", "type": "proc", "source": "proc"}},
		"linux": map[string]any{"namespaces": []any{
			map[string]any{"type": "network", "path": netns},
			map[string]any{"type": "pid"}, map[string]any{"type": "ipc"}, map[string]any{"type": "uts"}, map[string]any{"type": "mount"},
		}},
	})
	return raw
}

func findRunsc(t testing.TB) string {
	t.Helper()
	candidates := []string{os.Getenv("HIBERNATE_RUNSC"), "../.tools/runsc"}
	for _, c := range candidates {
		if path, err := filepath.Abs(c); c != "" && err == nil {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
	}
	t.Fatal("no runsc: make tools")
	return ""
}

func fail(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// run gives runsc files for its output: the sandbox inherits them.
func (g *gvisor) run(t testing.TB, args ...string) {
	t.Helper()
	out, err := os.CreateTemp(t.TempDir(), "runsc")
	fail(t, err)
	defer out.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	flags := []string{
		"--root=" + g.root, "--platform=systrap", "--network=sandbox", "--overlay2=root:self",
		"--allow-connected-on-save=true", "--ignore-cgroups",
	}
	cmd := exec.CommandContext(ctx, g.runsc, append(flags, args...)...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		text, _ := os.ReadFile(out.Name())
		t.Fatalf("runsc %v: %v\n%s", args, err, bytes.TrimSpace(text))
	}
}

func (g *gvisor) start(t testing.TB) {
	t.Helper()
	g.run(t, "create", "--bundle", g.bundle, g.id)
	g.run(t, "start", g.id)
}

// save writes a checkpoint and ends the sandbox.
func (g *gvisor) save(t testing.TB) (image string) {
	t.Helper()
	g.run(t, "pause", g.id)
	return g.savePaused(t)
}

func (g *gvisor) savePaused(t testing.TB) (image string) {
	t.Helper()
	image = t.TempDir()
	g.run(t, "checkpoint", "--leave-running", "--image-path", image, g.id)
	g.run(t, "delete", "--force", g.id)
	return image
}

func (g *gvisor) restore(t testing.TB, image string) {
	t.Helper()
	g.run(t, "create", "--bundle", g.bundle, g.id)
	g.run(t, "restore", "--detach", "--image-path", image, g.id)
}

// Three sleeps of a real sandbox: one connection outlives them all, a new one
// finds its server after each, and the ladder is sound.
func TestRunscSleepsThreeTimes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.open(t)
	must(t, l.PrepareInner(t.Context()))
	g := newGvisor(t, w.inner)
	g.start(t)
	must(t, l.Connect(t.Context()))
	c := dialRetry(t, w)
	defer c.Close()
	must(t, say(c, "before any sleep", answerTime))
	sound(t, l)
	misses := watch(t, l)
	for i, gate := range []network.Gate{held(echoPort), parked, held(echoPort)} {
		must(t, l.Disconnect(t.Context()))
		must(t, l.SetGate(t.Context(), gate))
		must(t, l.Quiet(t.Context(), 20*time.Millisecond))
		image := g.save(t)
		drain(misses)
		line := fmt.Sprintf("said during sleep %d", i)
		must(t, c.SetDeadline(time.Now().Add(10*time.Second)))
		_, err := c.Write([]byte(line + "\n"))
		must(t, err)
		next(t, misses)

		must(t, l.PrepareInner(t.Context()))
		g.restore(t, image)
		start := time.Now()
		must(t, l.SetGate(t.Context(), opened))
		must(t, l.Connect(t.Context()))
		must(t, hear(c, line))
		t.Logf("sleep %d (%s): answered %v after the restore", i, gate.Position, time.Since(start))
		sound(t, l)
		fresh := dialRetry(t, w)
		must(t, say(fresh, "a new connection", answerTime))
		must(t, fresh.Close())
	}
}

func dialRetry(t *testing.T, w *world) (c net.Conn) {
	t.Helper()
	eventually(t, "a connection", func() (ok bool) {
		var err error
		c, err = w.dial(echoPort, answerTime)
		return err == nil
	})
	return c
}

func sound(t *testing.T, l *network.Link) {
	t.Helper()
	start := time.Now()
	rungs := l.Check(t.Context(), []uint16{echoPort})
	t.Logf("ladder: %v", time.Since(start))
	for _, r := range rungs {
		if !r.OK || r.Repaired {
			t.Errorf("%+v", r)
		}
	}
}

// Lines sent without a pause, before, while and after the sandbox goes to sleep,
// all come back, once and in order: nothing was acknowledged and then lost.
func TestRunscLosesNothingOnTheWayToSleep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	l := w.open(t)
	must(t, l.PrepareInner(t.Context()))
	g := newGvisor(t, w.inner)
	g.start(t)
	must(t, l.Connect(t.Context()))
	n := newNumbers(t, dialRetry(t, w))
	for i := range 4 {
		<-time.After(time.Duration(i) * 7 * time.Millisecond) // another moment each time
		for !cut(t, l, g) {
			n.catchUp(t)
		}
		image := g.savePaused(t)
		must(t, l.PrepareInner(t.Context()))
		g.restore(t, image)
		must(t, l.SetGate(t.Context(), opened))
		must(t, l.Connect(t.Context()))
		n.catchUp(t)
	}
	n.end(t)
}

// cut takes a sandbox off the network and pauses it, in the package's order. It is false when the sandbox has said
// something into the closing gate: that is undone, as a hibernation is, since the sandbox has to say it again.
func cut(t *testing.T, l *network.Link, g *gvisor) bool {
	t.Helper()
	unsaid := func() uint64 {
		c, err := l.Unsaid(t.Context())
		must(t, err)
		return c.Packets
	}
	before := unsaid()
	must(t, l.Disconnect(t.Context()))
	must(t, l.Quiet(t.Context(), 100*time.Millisecond)) // longer than the shim's: an undone cut costs seconds
	must(t, l.SetGate(t.Context(), parked))
	g.run(t, "pause", g.id)
	if unsaid() == before {
		return true
	}
	g.run(t, "resume", g.id)
	must(t, l.SetGate(t.Context(), opened))
	must(t, l.Connect(t.Context()))
	return false
}

// numbers says 0, 1, 2, … a line each on an echoing connection, whatever comes back, and hears them.
type numbers struct {
	c           net.Conn
	stop        chan struct{}
	said, heard atomic.Int64
	sent, got   chan error
}

const (
	// sayEvery leaves the sandbox time to answer. gVisor takes long to say again what it has lost many segments of.
	sayEvery = 5 * time.Millisecond
	// silence is longer than any end of a connection waits before it says again what was lost.
	silence = 150 * time.Second
)

func newNumbers(t *testing.T, c net.Conn) *numbers {
	t.Cleanup(func() { c.Close() })
	n := &numbers{c: c, stop: make(chan struct{}), sent: make(chan error, 1), got: make(chan error, 1)}
	go func() { n.sent <- n.say() }()
	go func() { n.got <- n.hear() }()
	return n
}

// say goes on until stop, and then closes its half.
func (n *numbers) say() error {
	tick := time.NewTicker(sayEvery)
	defer tick.Stop()
	for {
		select {
		case <-n.stop:
			return n.c.(*net.TCPConn).CloseWrite()
		case <-tick.C:
		}
		if _, err := fmt.Fprintf(n.c, "%d\n", n.said.Load()); err != nil {
			return err
		}
		n.said.Add(1)
	}
}

func (n *numbers) hear() error {
	for in := bufio.NewScanner(n.c); ; n.heard.Add(1) {
		if err := n.c.SetReadDeadline(time.Now().Add(silence)); err != nil {
			return err
		}
		if !in.Scan() {
			return in.Err()
		}
		if want := strconv.FormatInt(n.heard.Load(), 10); in.Text() != want {
			return fmt.Errorf("heard %q, not %s", in.Text(), want)
		}
	}
}

// catchUp waits until what has been said so far is heard.
func (n *numbers) catchUp(t *testing.T) {
	t.Helper()
	for said := n.said.Load(); n.heard.Load() < said; time.Sleep(time.Millisecond) {
		select {
		case err := <-n.got:
			t.Fatalf("of %d lines %d came back: %v", n.said.Load(), n.heard.Load(), err)
		default:
		}
	}
}

func (n *numbers) end(t *testing.T) {
	t.Helper()
	close(n.stop)
	must(t, <-n.got)
	must(t, <-n.sent)
	if said, heard := n.said.Load(), n.heard.Load(); said != heard {
		t.Fatalf("%d lines said, %d heard", said, heard)
	}
	t.Logf("%d lines", n.said.Load())
}
