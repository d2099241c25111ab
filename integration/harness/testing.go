package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

// cleanUp bounds the orderly end of a test's world.
const cleanUp = 2 * time.Minute

// New makes a world for a test that needs root. When the test ends, its containers are removed and whatever else is left
// of them fails the test; the ends of the logs are shown when the test failed. HIBERNATE_KEEP=1 keeps a failed test's logs.
func New(t *testing.T, o Options) *World {
	t.Helper()
	testroot.Require(t)
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	if o.Log == nil {
		o.Log = t.Logf
	}
	w, err := Start(ctx, o)
	if err != nil {
		t.Fatal("world:", err)
	}
	before, err := w.Census(ctx)
	if err != nil {
		t.Error("world:", err)
	}
	t.Cleanup(func() { w.finish(t, before) })
	return w
}

func (w *World) finish(t *testing.T, before Census) {
	ctx, cancel := context.WithTimeout(context.Background(), cleanUp)
	defer cancel()
	if t.Failed() {
		w.showLogs(t)
	}
	if err := w.settle(ctx, before); err != nil {
		t.Error(err)
		w.showLogs(t)
	}
	if t.Failed() && os.Getenv("HIBERNATE_KEEP") == "1" {
		keep := filepath.Join(os.TempDir(), w.Name+"-logs")
		t.Logf("logs kept in %s: %v", keep, os.CopyFS(keep, os.DirFS(filepath.Join(w.Dir, "logs"))))
	}
	if err := w.Close(); err != nil {
		t.Error("close world:", err)
	}
}

// settle removes what tests made, and compares with before. A program that a test left dead is started for it. In a
// bare world the test has removed what it made.
func (w *World) settle(ctx context.Context, before Census) error {
	if w.Containerd.Pid() == 0 && !w.options.Bare {
		if err := w.Containerd.Start(ctx); err != nil {
			return err
		}
	}
	if w.Containerd.Pid() != 0 {
		if err := w.RemoveAll(ctx); err != nil {
			return fmt.Errorf("remove containers: %w", err)
		}
	}
	err := w.CheckLeaks(ctx, before)
	for _, p := range []*Program{w.Daemon, w.Containerd} {
		if stop := p.Stop(ctx); !errors.Is(stop, ErrNotRunning) {
			err = errors.Join(err, stop)
		}
	}
	return err
}

func (w *World) showLogs(t *testing.T) {
	for _, p := range []*Program{w.Containerd, w.Daemon} {
		if _, err := os.Stat(p.LogFile); err != nil {
			continue // it was never started
		}
		t.Logf("--- the end of %s's log\n%s", p.Name, p.LogTail(6000))
	}
}
