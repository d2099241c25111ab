package manager

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

const (
	testNamespace = "hibernate-test"
	deadline      = 20 * time.Second
)

// binary is the shim program with services that do nothing.
var binary string

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shim")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "containerd-shim-hibernate-v1")
	if out, err := exec.Command("go", "build", "-o", binary, "./internal/stubshim").CombinedOutput(); err != nil {
		panic(string(out))
	}
	// The daemons' parent is gone when `start` has answered; here they are waited for.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	return m.Run()
}

// bundle is a container's bundle as containerd makes it.
type bundle struct {
	t       *testing.T
	dir, id string
	address string // containerd's, unique to a test, so that its sockets are
	old     bool   // called by containerd 1.6, which says less in the environment
}

func newBundle(t *testing.T, annotations map[string]string) *bundle {
	t.Helper()
	b := &bundle{t: t, dir: t.TempDir(), id: filepath.Base(t.TempDir()) + strconv.FormatInt(time.Now().UnixNano(), 36)}
	b.address = filepath.Join(b.dir, "containerd.sock")
	text, err := json.Marshal(map[string]any{"ociVersion": "1.2.0", "annotations": annotations})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(b.dir, "config.json"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.kill)
	return b
}

// result is what a call of the program came to.
type result struct {
	stdout, stderr []byte
	err            error
}

// call runs the program in the bundle as containerd does.
func (b *bundle) call(stdin []byte, extra ...string) result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	args := append([]string{"-namespace", testNamespace, "-address", b.address, "-publish-binary", "/bin/true", "-id", b.id}, extra...)
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "GOMAXPROCS=2", "TTRPC_ADDRESS="+b.address+".ttrpc")
	if !b.old {
		cmd.Env = append(cmd.Env, "MAX_SHIM_VERSION=2", "GRPC_ADDRESS="+b.address, "NAMESPACE="+testNamespace)
	}
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &out, &errs
	err := cmd.Run()
	return result{out.Bytes(), errs.Bytes(), err}
}

// start calls `start` and fails the test when that fails or isn't silent.
func (b *bundle) start(stdin []byte) []byte {
	b.t.Helper()
	r := b.call(stdin, "start")
	if r.err != nil || len(r.stderr) > 0 {
		b.t.Fatalf("start: %v, stderr %q", r.err, r.stderr)
	}
	return r.stdout
}

// pid returns the daemon's process, 0 when the bundle has none.
func (b *bundle) pid() int {
	text, err := os.ReadFile(filepath.Join(b.dir, pidFile))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	pid, err := strconv.Atoi(string(text))
	if err != nil {
		b.t.Fatalf("%s: %v", pidFile, err)
	}
	return pid
}

// kill ends the daemon if it lives, and waits for its end.
func (b *bundle) kill() {
	if pid := b.pid(); pid != 0 && unix.Kill(pid, unix.SIGKILL) == nil {
		b.waitEnd()
	}
	if address, err := os.ReadFile(filepath.Join(b.dir, AddressFile)); err == nil {
		_ = os.Remove(strings.TrimPrefix(string(address), "unix://"))
	}
}

// waitEnd waits until the daemon has ended.
func (b *bundle) waitEnd() {
	b.t.Helper()
	eventually(b.t, "the daemon's end", func() bool {
		got, err := unix.Wait4(b.pid(), nil, unix.WNOHANG, nil)
		return got == b.pid() || errors.Is(err, unix.ECHILD)
	})
}

// socketDir is a directory for sockets. Its name is short, as containerd's is: a socket's path has 107 bytes.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(deadline); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}

// dial connects to a daemon.
func dial(t *testing.T, address string) *ttrpc.Client {
	t.Helper()
	path, ok := strings.CutPrefix(address, "unix://")
	if !ok {
		t.Fatalf("address %q is no path", address)
	}
	conn, err := net.DialTimeout("unix", path, deadline)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close() })
	return client
}
