package checkpointverbs

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// A checkpoint of another version of runsc is refused when a container is created from it: both versions are named, and what
// to do. Nothing is left of the attempt, and the checkpoint is as good as before.
func testAnotherRunsc(n *node) {
	n.serve()
	n.counts("1")
	n.must("containers", "checkpoint", "--task", "--image", n.id, "versions")
	defer n.must("images", "delete", "versions")
	mine := n.is(n.id, "awake", "RUNNING").GetRunscVersion()
	n.remove(n.id)
	census, err := n.Census(n.context())
	if err != nil {
		n.t.Fatal(err)
	}
	config := n.pretend("release-other")
	_, complaint := n.try("containers", "restore", "--live", "b", "versions")
	for _, want := range []string{mine, "release-other", "by the key runsc", "make the checkpoint again"} {
		if !strings.Contains(complaint, want) {
			n.t.Errorf("the refusal does not tell %q: %s", want, complaint)
		}
	}
	n.remove("b")
	if err := n.CheckLeaks(n.context(), census); err != nil {
		n.t.Error(err)
	}
	config()
	n.t.Cleanup(func() { n.remove("b") })
	n.must("containers", "restore", "--live", "b", "versions")
	n.answers()
	n.counts("2")
}

// pretend makes the world's runsc tell another version, until the returned function is called.
func (n *node) pretend(version string) (end func()) {
	n.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nfor a; do\n  [ \"$a\" = --version ] && echo 'runsc version %s' && exit\ndone\nexec %s \"$@\"\n",
		version, n.Program("runsc"))
	path := filepath.Join(n.t.TempDir(), "runsc")
	was, err := os.ReadFile(n.ConfigFile())
	if err == nil {
		err = os.WriteFile(path, []byte(script), 0o700)
	}
	if err != nil {
		n.t.Fatal(err)
	}
	n.configure(strings.Replace(string(was), n.Program("runsc"), path, 1))
	return func() { n.configure(string(was)) }
}

func (n *node) configure(text string) {
	n.t.Helper()
	if err := os.WriteFile(n.ConfigFile(), []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

// A checkpoint with the container's files has none of the sandbox's own, whose size would be that of all that the container has
// written; and a commit, for which engines pause the container, neither.
func testFilesOfTheSandbox(n *node) {
	n.serve()
	n.must("containers", "checkpoint", "--task", "--rw", n.id, "files")
	defer n.must("images", "delete", "files")
	files := n.filesOf("files")
	for _, f := range files {
		if strings.Contains(f, "gvisor") {
			n.t.Errorf("the checkpoint has the sandbox's file %s", f)
		}
	}
	n.must("tasks", "pause", n.id)
	if names := n.written(); len(names) > 0 {
		n.t.Errorf("paused, the container's snapshot has %v", names)
	}
	n.must("tasks", "resume", n.id)
	n.counts("1")
	n.sleep(n.id)
	n.counts("2")
	if names := n.written(); len(names) != 1 { // engines count it as the container's use of the disk
		n.t.Errorf("awake, it has %v", names)
	}
}

// written are files of the sandbox in the container's root directory.
func (n *node) written() []string {
	n.t.Helper()
	names, err := filepath.Glob(n.Path(filepath.Join(n.Dir, "state/io.containerd.runtime.v2.task", n.Name, n.id, "rootfs", ".gvisor*")))
	if err != nil {
		n.t.Fatal(err)
	}
	return names
}

// filesOf names the files in the layers of a checkpoint image.
func (n *node) filesOf(ref string) []string {
	n.t.Helper()
	f := strings.Fields(n.must("images", "list", "name=="+ref))
	at := slices.IndexFunc(f, func(s string) bool { return strings.HasPrefix(s, "sha256:") })
	if at < 0 {
		n.t.Fatalf("no image %s in %q", ref, f)
	}
	var index specs.Index
	if err := json.Unmarshal([]byte(n.must("content", "get", f[at])), &index); err != nil {
		n.t.Fatal(err)
	}
	var names []string
	layers := 0
	for _, m := range index.Manifests {
		if !strings.Contains(m.MediaType, "layer") {
			continue
		}
		layers++
		names = append(names, n.namesIn(m)...)
	}
	if layers == 0 {
		n.t.Errorf("the checkpoint has no layer of files: %+v", index.Manifests)
	}
	return names
}

func (n *node) namesIn(layer specs.Descriptor) []string {
	n.t.Helper()
	var in io.Reader = strings.NewReader(n.must("content", "get", layer.Digest.String()))
	if strings.HasSuffix(layer.MediaType, "gzip") {
		z, err := gzip.NewReader(in)
		if err != nil {
			n.t.Fatal(err)
		}
		in = z
	}
	var names []string
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return names
		}
		if err != nil {
			n.t.Fatal(err)
		}
		names = append(names, h.Name)
	}
}
