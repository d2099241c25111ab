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
	image = t.TempDir()
	g.run(t, "pause", g.id)
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
	w := newWorld(t)
	l := w.open(t)
	must(t, l.PrepareInner(t.Context()))
	g := newGvisor(t, w.inner)
	g.start(t)
	must(t, l.Connect(t.Context()))
	c := dialRetry(t, w)
	defer c.Close()
	must(t, say(c, "before any sleep", time.Second))
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
		must(t, say(fresh, "a new connection", time.Second))
		must(t, fresh.Close())
	}
}

func dialRetry(t *testing.T, w *world) (c net.Conn) {
	t.Helper()
	eventually(t, "a connection", func() (ok bool) {
		var err error
		c, err = w.dial(echoPort, time.Second)
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
	w := newWorld(t)
	l := w.open(t)
	must(t, l.PrepareInner(t.Context()))
	g := newGvisor(t, w.inner)
	g.start(t)
	must(t, l.Connect(t.Context()))
	c := dialRetry(t, w)
	defer c.Close()
	must(t, c.SetDeadline(time.Now().Add(time.Minute)))
	const sleeps = 4
	stop := make(chan struct{})
	sent, got := make(chan int, 1), make(chan error, 1)
	go func() { sent <- sendNumbers(c, stop) }()
	counted := 0
	go func() { got <- hearNumbers(c, &counted) }()
	for i := range sleeps {
		<-time.After(time.Duration(i) * 7 * time.Millisecond) // another moment each time
		must(t, l.Disconnect(t.Context()))
		must(t, l.SetGate(t.Context(), parked))
		must(t, l.Quiet(t.Context(), 20*time.Millisecond))
		image := g.save(t)
		must(t, l.PrepareInner(t.Context()))
		g.restore(t, image)
		must(t, l.SetGate(t.Context(), opened))
		must(t, l.Connect(t.Context()))
	}
	close(stop)
	n := <-sent
	must(t, <-got)
	if counted != n {
		t.Fatalf("%d lines sent, %d came back", n, counted)
	}
	t.Logf("%d lines over %d sleeps", n, sleeps)
}

// sendNumbers writes 0, 1, 2, … a line each until stop, and then closes its half.
func sendNumbers(c net.Conn, stop <-chan struct{}) (n int) {
	defer c.(*net.TCPConn).CloseWrite()
	for {
		select {
		case <-stop:
			return n
		default:
		}
		if _, err := fmt.Fprintf(c, "%d\n", n); err != nil {
			return n
		}
		n++
	}
}

func hearNumbers(c net.Conn, n *int) error {
	in := bufio.NewScanner(c)
	for in.Scan() {
		if in.Text() != strconv.Itoa(*n) {
			return fmt.Errorf("line %d is %q", *n, in.Text())
		}
		*n++
	}
	return in.Err()
}
