package ctl

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// What a container wrote is exported, to a file and to standard output, awake and asleep; a deleted file is told.
func testExport(t *testing.T, n *node) {
	script := "mkdir /made; echo text > /made/file; rm /bin/wc; echo done > /made/done; while :; do sleep 1; done"
	c := harness.Container{ID: "writer", Image: "testserver", Detach: true, Args: []string{"sh", "-c", script}}
	if _, err := n.Run(n.context(), c); err != nil {
		t.Fatal(err)
	}
	first := filepath.Join(t.TempDir(), "first.tar")
	files := map[string]string{}
	for end := time.Now().Add(limit); files["made/done"] == ""; { // the script has come to its end
		if time.Now().After(end) {
			t.Fatalf("not written within %v: %q", limit, files)
		}
		_ = os.Remove(first)
		n.ctl(0, "export-rootfs", "writer", "-o", first)
		files = archived(t, open(t, first))
	}
	n.asleep("writer")
	out, _ := n.ctl(0, "export-rootfs", "writer")
	for name, r := range map[string]io.Reader{"awake": open(t, first), "asleep": strings.NewReader(out)} {
		files := archived(t, r)
		if files["made/file"] != "text\n" || files["usr/bin/wc"] != "gone" {
			t.Errorf("%s: %q", name, files)
		}
		if _, unchanged := files["usr/bin/sh"]; unchanged {
			t.Errorf("%s: a file of the image is there", name)
		}
	}
	_, errs := n.ctl(1, "export-rootfs", "writer", "-o", first)
	n.says(errs, "file exists")
}

func open(t *testing.T, path string) io.Reader {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// archived are the files of an archive, by their names; the content of a whiteout is gone.
func archived(t *testing.T, r io.Reader) map[string]string {
	t.Helper()
	files := make(map[string]string)
	for archive := tar.NewReader(r); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeChar && h.Devmajor == 0 && h.Devminor == 0 {
			data = []byte("gone")
		}
		files[strings.Trim(strings.TrimPrefix(h.Name, "."), "/")] = string(data)
	}
}
