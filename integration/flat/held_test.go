package flat

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// heldSidecar builds the sidecar whose disk obeys hold and fail, and returns its path.
func heldSidecar(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", dir+"/", "./held/checkpointgofer")
	cmd.Dir = filepath.Join(root, "sidecar")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return filepath.Join(dir, "checkpointgofer")
}

// script makes a program in the sidecar's place.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "checkpointgofer")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// control is a file beside the snapshot that the held sidecar obeys.
func (a *app) control(name string) string {
	a.Helper()
	return filepath.Join(filepath.Dir(a.image("pages.img")), "../..", name)
}

// hold has reads of the last quarter of the memory wait, until the returned function is called.
func (a *app) hold() (release func()) {
	a.Helper()
	return a.order("hold")
}

// order has the held sidecar's disk do something, until the returned function is called.
func (a *app) order(what string) (release func()) {
	a.Helper()
	path := a.control(what)
	a.must(os.WriteFile(path, nil, 0o600))
	release = func() {
		if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
			a.Error(err)
		}
	}
	a.Cleanup(release)
	return release
}

// fail has reads of the last quarter fail.
func (a *app) fail() {
	a.Helper()
	path := a.control("fail")
	a.must(os.WriteFile(path, nil, 0o600))
	a.Cleanup(func() { _ = os.Remove(path) })
}

// wakeHeld puts it to sleep and wakes it, with the load held in its last quarter.
func (a *app) wakeHeld() (release func()) {
	a.Helper()
	a.sleep()
	release = a.hold()
	a.wake()
	if !a.isLoading() || len(a.sidecars()) != 1 {
		a.Fatalf("it is not loading, or by %v", a.sidecars())
	}
	return release
}
