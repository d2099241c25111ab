package roottest

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

// sandbox is a runsc root of its own and the one container in it.
type sandbox struct {
	t      *testing.T
	root   string
	bundle string
	id     string
	out    *os.File // read end of the container's stdout
	in     *os.File
}

// newSandbox starts testdata/init with that many MiB of heap and of a file in
// the root file system, and waits until both are there.
func newSandbox(t *testing.T, heap, file int) *sandbox {
	t.Helper()
	testroot.Require(t)
	dir := t.TempDir()
	s := &sandbox{t: t, root: filepath.Join(dir, "root"), bundle: filepath.Join(dir, "bundle"), id: "snapshot" + strconv.Itoa(os.Getpid())}
	s.must(os.MkdirAll(s.bundle+"/rootfs", 0o700))
	build := exec.CommandContext(t.Context(), "go", "build", "-o", s.bundle+"/rootfs/init", "./testdata/init")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build init: %v\n%s", err, out)
	}
	spec, err := json.Marshal(specs.Spec{
		Version: "1.2.0", Root: &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Args: []string{"/init", strconv.Itoa(heap), strconv.Itoa(file)}, Cwd: "/"},
		Linux:   &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "network"}, {Type: "mount"}}},
	})
	s.must(err)
	s.must(os.WriteFile(s.bundle+"/config.json", spec, 0o600))
	s.out, s.in, err = os.Pipe()
	s.must(err)
	t.Cleanup(s.cleanup)
	s.runsc("create", "--bundle", s.bundle, s.id)
	s.runsc("start", s.id)
	s.line("ready")
	return s
}

func (s *sandbox) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *sandbox) cleanup() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if out, err := s.command(ctx, "delete", "--force", s.id).CombinedOutput(); err != nil {
		s.t.Errorf("cleanup: %v: %s", err, out)
	}
	_ = unix.Unmount(filepath.Join(s.root, "null-netns"), unix.MNT_DETACH)
	_ = s.out.Close()
	_ = s.in.Close()
}

func (s *sandbox) command(ctx context.Context, args ...string) *exec.Cmd {
	flags := []string{
		"--root", s.root, "--platform=systrap", "--network=none", "--ignore-cgroups",
		"--overlay2=root:self", "--log", filepath.Join(filepath.Dir(s.root), "log"),
	}
	return exec.CommandContext(ctx, runscPath(s.t), append(flags, args...)...)
}

// try runs runsc with the container's pipe as output, through no pipe of Go,
// which the sandbox would keep open.
func (s *sandbox) try(args ...string) error {
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	cmd := s.command(ctx, args...)
	if args[0] == "create" || args[0] == "restore" {
		cmd.Stdout = s.in
	}
	return cmd.Run()
}

func (s *sandbox) runsc(args ...string) {
	s.t.Helper()
	if err := s.try(args...); err != nil {
		log, _ := os.ReadFile(filepath.Join(filepath.Dir(s.root), "log"))
		s.t.Fatalf("runsc %v: %v\n%s", args, err, log)
	}
}

// line reads what the container says until it says want; "" is anything.
func (s *sandbox) line(want string) {
	s.t.Helper()
	s.must(s.out.SetReadDeadline(time.Now().Add(30 * time.Second)))
	r := bufio.NewReader(s.out)
	for {
		got, err := r.ReadString('\n')
		s.must(err)
		if want == "" || got == want+"\n" {
			return
		}
	}
}

// drain forgets what the container said so far.
func (s *sandbox) drain() {
	s.t.Helper()
	s.must(s.out.SetReadDeadline(time.Now().Add(time.Millisecond)))
	buf := make([]byte, 1<<16)
	for {
		if _, err := s.out.Read(buf); err != nil {
			return
		}
	}
}

func runscPath(t *testing.T) string {
	t.Helper()
	for _, p := range []string{os.Getenv("HIBERNATE_RUNSC"), "../../.tools/runsc"} {
		abs, err := filepath.Abs(p)
		if _, serr := os.Stat(abs); p != "" && err == nil && serr == nil {
			return abs
		}
	}
	t.Fatal("no runsc: run `make tools`, or set HIBERNATE_RUNSC")
	return ""
}
