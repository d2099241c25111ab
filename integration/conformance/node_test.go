// Package conformance plays containerd: it starts the built shim as containerd does, takes its events, and drives it over
// ttrpc, with nothing else on the node. Each *theme* (lifecycle, streams, exec, …) runs in two *moods*: awake, and asleep,
// where the container is put to sleep between any two steps; nothing that containerd can see may differ.
//
// A *node* is a bare world of package harness with the events' receiver; a *container* is one bundle and its shim. What a
// test leaves behind fails it. The number of *cases* is printed at the end.
package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/log"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// cases counts what was checked: subtests that have none of their own, and cells of tables.
var cases atomic.Int64

func TestMain(m *testing.M) {
	_ = log.SetLevel("fatal") // ttrpc's client tells of answers that nobody waits for any more
	code := m.Run()
	fmt.Printf("conformance: %d cases\n", cases.Load())
	os.Exit(code)
}

// check is a case of its own.
func check(t *testing.T, name string, fn func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) {
		cases.Add(1)
		fn(t)
	})
}

// A mood says what happens between the steps of a theme.
type mood struct {
	name   string
	asleep bool
}

// moods runs a theme in each mood.
func moods(t *testing.T, theme func(t *testing.T, m mood)) {
	t.Helper()
	for _, m := range []mood{{"awake", false}, {"asleep", true}} {
		t.Run(m.name, func(t *testing.T) { theme(t, m) })
	}
}

// stepLimit bounds one request. The machine may be busy.
const stepLimit = 90 * time.Second

type node struct {
	*harness.World
	events *receiver
	rootfs string // lower layer of every container
	config string // of the runtime
}

// newNode makes a node. settings are keys of the configuration. Tests wait for each other's time-outs side by side: each has a node of its own.
func newNode(t *testing.T, settings map[string]string) *node {
	t.Helper()
	t.Parallel()
	n := &node{World: harness.New(t, harness.Options{Bare: true, Settings: settings})}
	n.config, n.rootfs = n.ConfigFile(), filepath.Join(n.Dir, "image")
	if err := n.unpack("testserver"); err != nil {
		t.Fatal(err)
	}
	n.events = receive(t, filepath.Join(n.Dir, "events.sock"))
	return n
}

// context is for one request.
func (n *node) context(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), n.Name), stepLimit)
	t.Cleanup(cancel)
	return ctx
}

// unpack makes the root filesystem of an image that has one layer: the test server's, with busybox.
func (n *node) unpack(image string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	layout := filepath.Join(n.Dir, "layout")
	for _, dir := range []string{layout, n.rootfs} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := untar(filepath.Join(root, ".tools/images", image+".tar"), layout); err != nil {
		return fmt.Errorf("image %s: %w: run 'make images'", image, err)
	}
	var index struct{ Manifests []struct{ Digest string } }
	if err := readJSON(filepath.Join(layout, "index.json"), &index); err != nil {
		return err
	}
	var manifest struct{ Layers []struct{ Digest string } }
	if err := readJSON(blob(layout, index.Manifests[0].Digest), &manifest); err != nil {
		return err
	}
	for _, l := range manifest.Layers {
		if err := untar(blob(layout, l.Digest), n.rootfs); err != nil {
			return fmt.Errorf("image %s: %w", image, err)
		}
	}
	return nil
}

func blob(layout, digest string) string {
	return filepath.Join(layout, "blobs", strings.ReplaceAll(digest, ":", "/"))
}

func untar(file, dir string) error {
	out, err := exec.Command("tar", "-xf", file, "-C", dir).CombinedOutput()
	if err != nil {
		return fmt.Errorf("unpack %s: %w: %s", file, err, out)
	}
	return nil
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	return json.Unmarshal(data, v)
}

// eventually polls until ok says true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(stepLimit); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	t.Fatalf("waited in vain for %s", what)
}
