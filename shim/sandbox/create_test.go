package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/containerd/containerd/api/types"

	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// The service catches a panic and answers with it: what Create had made by then must not stay.
func TestPanicInCreateLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	bundle, runDir := filepath.Join(dir, "bundle"), filepath.Join(dir, "run")
	if err := os.Mkdir(bundle, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(bundle, "config.json"), []byte(`{"process":{"args":["x"]},"root":{"path":"rootfs"}}`), 0o600); err != nil {
		t.Fatal(err)
	}
	opts := Options{Namespace: "n", ID: "c", Bundle: bundle, Now: time.Now, Log: slog.New(slog.DiscardHandler)}
	req := CreateRequest{
		ConfigBody: fmt.Sprintf("runsc = %q\nhelper = %q\nrun-dir = %q\n", "/bin/true", "/bin/true", runDir),
		Rootfs:     []*types.Mount{nil},
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Fatal("nothing panicked: the test needs another way to make it")
			}
		}()
		_, _ = Create(context.Background(), opts, req)
	}()
	for _, path := range []string{filepath.Join(bundle, "hibernate"), filepath.Join(runDir, "runsc")} {
		entries, err := os.ReadDir(path)
		if err == nil && (path != filepath.Join(runDir, "runsc") || len(entries) > 0) {
			t.Errorf("%s is left, with %v", path, entries)
		}
	}
}

// The daemon owns the snapshots of a container for a moment, when it looks whether they may go: a container that is created then
// waits, and fails only when nothing comes of it.
func TestCreateWaitsForItsSnapshots(t *testing.T) {
	w := bare()
	w.config.DataDir = t.TempDir()
	other, err := snapshot.OpenLocal(snapshot.DirFor(w.config.DataDir, w.opts.Namespace, w.opts.ID, ""))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	var u undo.Stack
	if err := w.openSnapshots(ctx, CreateRequest{}, &u); !errors.Is(err, snapshot.ErrBusy) {
		t.Fatalf("of another it has them: %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- w.openSnapshots(t.Context(), CreateRequest{}, &u) }()
	time.Sleep(20 * time.Millisecond) // it has tried
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := u.Run(t.Context()); err != nil {
		t.Error(err)
	}
}
