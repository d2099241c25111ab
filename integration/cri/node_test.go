// Package cri has containerd's CRI make pods with this runtime, by crictl.
package cri

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	// namespace is that of all that CRI makes.
	namespace = "k8s.io"
	// limit bounds one call, which containerd gives up earlier.
	limit = 60 * time.Second
)

// TestMain is the stand-in for CRIU, too, when containerd starts it: it wants CRIU's version before any checkpoint, and
// nothing else of it.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "swrk" {
		if err := tellVersion(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// tellVersion answers a request on the socket that is descriptor fd: type VERSION, success, version {3, 17}, as protobuf.
func tellVersion(fd string) error {
	n, err := strconv.Atoi(fd)
	if err != nil {
		return err
	}
	conn, err := net.FileConn(os.NewFile(uintptr(n), "request"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 4096)); err != nil {
		return err
	}
	_, err = conn.Write([]byte{1 << 3, 10, 2 << 3, 1, 10<<3 | 2, 4, 1 << 3, 3, 2 << 3, 17})
	return err
}

type node struct {
	*harness.World
	t      *testing.T
	config string // of crictl
}

// newNode makes one whose pods' sandboxes are the pause program, or another image's.
func newNode(t *testing.T, sandbox string) *node {
	t.Helper()
	n := &node{t: t}
	criu := filepath.Join(t.TempDir(), "criu")
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, criu)
	}
	root, rootErr := harness.Root()
	if err != nil || rootErr != nil {
		t.Fatal(err, rootErr)
	}
	path := []string{filepath.Dir(criu), filepath.Join(root, "bin"), filepath.Join(root, ".tools"), os.Getenv("PATH")}
	n.World = harness.New(t, harness.Options{
		CRI: true, Pause: sandbox, PodAnnotations: []string{"io.kubernetes.*"}, Settings: map[string]string{"mode": `"manual"`}, Env: []string{"PATH=" + strings.Join(path, ":")},
	})
	n.config = n.write("crictl.yaml", map[string]any{
		"runtime-endpoint": "unix://" + n.Address(), "image-endpoint": "unix://" + n.Address(), "timeout": int(limit.Seconds()),
	})
	for _, image := range []string{"pause", "testserver", "busybox"} {
		n.must("ctr", "--address", n.Address(), "--namespace", namespace, "images", "import",
			filepath.Join(root, ".tools", "images", image+".tar"))
	}
	return n
}

// write writes a configuration as JSON, which YAML includes.
func (n *node) write(name string, v any) string {
	n.t.Helper()
	data, err := json.Marshal(v)
	file := filepath.Join(n.Dir, name)
	if err == nil {
		err = os.WriteFile(file, data, 0o600)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	return file
}

func (n *node) try(name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	defer cancel()
	out, err := n.Output(ctx, name, args...)
	return strings.TrimSpace(out), err
}

func (n *node) must(name string, args ...string) string {
	n.t.Helper()
	out, err := n.try(name, args...)
	if err != nil {
		n.t.Fatal(err)
	}
	return out
}

func (n *node) crictl(args ...string) string {
	n.t.Helper()
	return n.must("crictl", append([]string{"--config", n.config}, args...)...)
}

// refused runs crictl and wants it to fail, saying all of what.
func (n *node) refused(what []string, args ...string) {
	n.t.Helper()
	_, err := n.try("crictl", append([]string{"--config", n.config}, args...)...)
	if err == nil {
		n.t.Fatalf("crictl %v was not refused", args)
	}
	for _, w := range what {
		if !strings.Contains(err.Error(), w) {
			n.t.Errorf("it says nothing of %q: %v", w, err)
		}
	}
}

// pod makes one of this name, and removes it with the test. config is what a container in it needs, too.
func (n *node) pod(name string) (id, config string) {
	n.t.Helper()
	return n.annotated(name, nil)
}

// annotated is pod with annotations.
func (n *node) annotated(name string, annotations map[string]string) (id, config string) {
	n.t.Helper()
	config = n.write(name+".json", map[string]any{
		"annotations":   annotations,
		"metadata":      map[string]any{"name": name, "namespace": "default", "uid": name},
		"log_directory": filepath.Join(n.Dir, "pods"),
		"linux":         map[string]any{"cgroup_parent": "/" + n.Name + "/" + name},
	})
	id = n.crictl("runp", config)
	n.t.Cleanup(func() { n.crictl("rmp", "--force", id) })
	return id, config
}

// container makes one in a pod, which is not started.
func (n *node) container(pod, config string) string {
	n.t.Helper()
	return n.crictl("create", pod, n.write("container.json", map[string]any{
		"metadata": map[string]any{"name": "server"}, "image": map[string]any{"image": harness.Reference("testserver")},
		"log_path": "server.log", "linux": map[string]any{},
	}), config)
}

// stateOf is a pod's or a container's, by the verb that inspects it.
func (n *node) stateOf(verb, id string) string {
	n.t.Helper()
	var answer struct{ Status struct{ State string } }
	if err := json.Unmarshal([]byte(n.crictl(verb, id)), &answer); err != nil {
		n.t.Fatal(err)
	}
	return answer.Status.State
}
