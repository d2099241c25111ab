package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

// box is a client with a root and a bundle of its own, and one container id.
type box struct {
	*Client
	t      *testing.T
	ctx    context.Context
	dir    string
	bundle string
	id     string
}

// newBox makes a bundle whose init runs testdata/init with args.
func newBox(t *testing.T, args ...string) *box {
	t.Helper()
	testroot.Require(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	b := &box{t: t, ctx: t.Context(), dir: dir, bundle: filepath.Join(dir, "bundle"), id: "c" + strconv.Itoa(os.Getpid())}
	b.Client = &Client{
		Path: runscPath(t), Root: filepath.Join(dir, "root"), LogDir: filepath.Join(dir, "log"),
		Flags: append(DefaultFlags("systrap"), "--ignore-cgroups"),
	}
	for _, d := range []string{b.bundle + "/rootfs/proc", b.Root, b.LogDir} {
		b.must(os.MkdirAll(d, 0o700))
	}
	b.must(os.Link(built(t, "./testdata/init"), b.bundle+"/rootfs/init"))
	b.writeSpec(func(*specs.Spec) {}, args...)
	t.Cleanup(b.cleanup)
	return b
}

func (b *box) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// cleanup removes what a sandbox leaves, processes to reap among it.
func (b *box) cleanup() {
	if err := b.Delete(context.Background(), b.id, true); err != nil {
		b.t.Errorf("cleanup: %v", err)
	}
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
		if err != nil || pid <= 0 {
			break
		}
	}
	if err := b.RemoveRoot(); err != nil {
		b.t.Errorf("cleanup: %v", err)
	}
}

func (b *box) writeSpec(change func(*specs.Spec), args ...string) {
	b.t.Helper()
	spec := &specs.Spec{
		Version: "1.2.0",
		Process: &specs.Process{Args: append([]string{"/init"}, args...), Env: []string{"A=b"}, Cwd: "/"},
		Root:    &specs.Root{Path: "rootfs"},
		Mounts:  []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}},
		Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{
			{Type: "pid"}, {Type: "network"}, {Type: "ipc"}, {Type: "uts"}, {Type: "mount"},
		}},
	}
	change(spec)
	data, err := json.Marshal(spec)
	b.must(err)
	b.must(os.WriteFile(b.bundle+"/config.json", data, 0o600))
}

// create gives the pid of the sandbox process.
func (b *box) create(io IO) int {
	b.t.Helper()
	pidFile := filepath.Join(b.dir, "pid")
	b.must(b.Create(b.ctx, b.id, CreateOptions{Bundle: b.bundle, PidFile: pidFile, IO: io}))
	data, err := os.ReadFile(pidFile)
	b.must(err)
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	b.must(err)
	return pid
}

func (b *box) run() int {
	b.t.Helper()
	pid := b.create(IO{})
	b.must(b.Start(b.ctx, b.id))
	return pid
}

// image checkpoints the running container, deletes it, and gives the image.
func (b *box) image() string {
	b.t.Helper()
	dir := filepath.Join(b.dir, "image")
	b.must(b.Pause(b.ctx, b.id))
	b.must(b.Checkpoint(b.ctx, b.id, CheckpointOptions{ImagePath: dir}))
	b.must(b.Delete(b.ctx, b.id, true))
	return dir
}

// status waits for a child, here the orphaned sandbox, and gives its status.
func (b *box) status(pid int) int {
	b.t.Helper()
	var ws syscall.WaitStatus
	for {
		_, err := syscall.Wait4(pid, &ws, 0, nil)
		if !errors.Is(err, syscall.EINTR) {
			b.must(err)
			break
		}
	}
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}

// runscPath finds the binary under test.
func runscPath(t *testing.T) string {
	t.Helper()
	for _, p := range []string{os.Getenv("HIBERNATE_RUNSC"), "../.tools/runsc"} {
		if p == "" {
			continue
		}
		if abs, err := filepath.Abs(p); err == nil {
			if _, err := os.Stat(abs); err == nil {
				return abs
			}
		}
	}
	t.Fatal("no runsc: run `make tools`, or set HIBERNATE_RUNSC")
	return ""
}

var builds struct {
	sync.Mutex
	dir   string
	paths map[string]string
}

// built compiles a program of this repository once, without cgo.
func built(t *testing.T, pkg string) string {
	t.Helper()
	builds.Lock()
	defer builds.Unlock()
	if builds.dir == "" {
		dir, err := os.MkdirTemp("", "runsc-test-")
		if err != nil {
			t.Fatal(err)
		}
		builds.dir, builds.paths = dir, make(map[string]string)
	}
	if builds.paths[pkg] == "" {
		path, err := build(builds.dir, filepath.Base(pkg), pkg)
		if err != nil {
			t.Fatal(err)
		}
		builds.paths[pkg] = path
	}
	return builds.paths[pkg]
}

func build(dir, name, pkg string) (string, error) {
	path := filepath.Join(dir, name)
	cmd := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", path, pkg)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s: %w\n%s", pkg, err, out)
	}
	return path, nil
}

func TestMain(m *testing.M) {
	code := m.Run()
	if builds.dir != "" {
		_ = os.RemoveAll(builds.dir)
	}
	os.Exit(code)
}
