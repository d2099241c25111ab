package command

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

func TestExportRootfs(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "redis"))
	if out, _ := h.run(exitOK, "export-rootfs", "redis"); out != "an archive\n" {
		t.Errorf("to standard output: %q", out)
	}
	path := filepath.Join(t.TempDir(), "redis.tar")
	h.run(exitOK, "export-rootfs", "redis", "-o", path)
	if data, err := os.ReadFile(path); err != nil || string(data) != "an archive\n" {
		t.Errorf("to a file: %q, %v", data, err)
	}
	_, errs := h.run(exitError, "export-rootfs", "redis", "-o", path)
	wantText(t, errs, "file exists")
	h.run(exitNotFound, "export-rootfs", "nginx", "-o", path+".other")
	if _, err := os.Stat(path + ".other"); !os.IsNotExist(err) {
		t.Errorf("a file was made for nothing: %v", err)
	}
}
