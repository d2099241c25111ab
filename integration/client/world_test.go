package client

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A world is a node without a containerd: the tests start their own, whose directories can't be chosen.
type world struct{ *harness.World }

func newWorld(t *testing.T, program string) world {
	t.Helper()
	alone(t, program)
	w := world{harness.New(t, harness.Options{Bare: true, Settings: map[string]string{"mode": `"manual"`}})}
	for _, name := range []string{"lib", "path"} {
		if err := os.Mkdir(w.dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// What the tests remove at their end they must be able to, and an overlay can't lie on an overlay.
	if _, err := w.Shell(t.Context(), "mount --bind "+w.dir("lib")+" /var/lib"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := w.Shell(context.Background(), "umount -l /var/lib; rm -rf /run/containerd-test /run/nri"); err != nil {
			t.Error(err)
		}
	})
	settings, err := os.ReadFile(w.ConfigFile())
	if err == nil {
		err = errors.Join(os.MkdirAll(w.Path("/etc/hibernate"), 0o755), os.WriteFile(w.Path("/etc/hibernate/config.toml"), settings, 0o644))
	}
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// alone waits for other runs of the program on this machine: the control groups of the tests' containers have fixed names.
func alone(t *testing.T, program string) {
	t.Helper()
	f, err := os.Open(program)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, pattern := range []string{"/sys/fs/cgroup/testing*", "/sys/fs/cgroup/*/testing*"} {
			tops, _ := filepath.Glob(pattern)
			for _, top := range tops {
				removeGroups(top)
			}
		}
		f.Close()
	})
}

// removeGroups removes a control group and all below it that are empty.
func removeGroups(group string) {
	below, _ := filepath.Glob(filepath.Join(group, "*", "cgroup.procs"))
	for _, b := range below {
		removeGroups(filepath.Dir(b))
	}
	_ = os.Remove(group)
}

func (w world) dir(name string) string { return filepath.Join(w.Dir, name) }

// path is a search path on which the tests find this runtime where they don't ask which one they shall use, and a program
// with the name by which they tell whether checkpoints can be tried.
func (w world) path(t *testing.T) string {
	t.Helper()
	err := errors.Join(
		os.Symlink(w.Program("containerd-shim-hibernate-v1"), filepath.Join(w.dir("path"), "containerd-shim-runc-v2")),
		os.Symlink("/bin/true", filepath.Join(w.dir("path"), "criu")),
	)
	if err != nil {
		t.Fatal(err)
	}
	bin, tools := filepath.Dir(w.Program("containerd-shim-hibernate-v1")), filepath.Dir(w.Program("containerd"))
	return strings.Join([]string{w.dir("path"), bin, tools, os.Getenv("PATH")}, ":")
}

// serve serves the image that the tests pull, under the name that they give it, and returns what makes them pull it there:
// they take no other name.
func (w world) serve(ctx context.Context, t *testing.T, program string) (env []string) {
	t.Helper()
	says, err := exec.CommandContext(ctx, program, "-test.short", "-test.list", "^$").CombinedOutput()
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`BusyBox:(\S+)`).FindSubmatch(says)
	if m == nil {
		t.Fatalf("the tests don't say which image they pull: %s", says)
	}
	image := string(m[1])
	host, _, _ := strings.Cut(image, "/")
	known, err := os.ReadFile(w.Path("/etc/hosts"))
	if err == nil {
		err = os.WriteFile(w.Path("/etc/hosts"), append(known, "\n127.0.0.1 "+host+"\n"...), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(filepath.Dir(w.Program("containerd")), "images", "busybox.tar")
	cert := w.dir("cert.pem")
	start(t, w.Command(ctx, w.Program("registry"), "-cert", cert, image+"="+archive))
	return []string{"SSL_CERT_FILE=" + cert}
}

// start starts a program, waits until it says "ready", and ends it with the test.
func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // killed
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		t.Fatalf("%s says %q, %v", cmd.Path, line, err)
	}
}
