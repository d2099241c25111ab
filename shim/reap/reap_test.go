package reap

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"syscall"
	"testing"

	"github.com/containerd/containerd/v2/pkg/sys/reaper"

	"github.com/hibernate-runtime/hibernate/runsc"
)

// A command leaves no descriptor behind, even when no garbage collection comes by.
func TestRunLeavesNoDescriptor(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	signals := make(chan os.Signal, 32)
	signal.Notify(signals, syscall.SIGCHLD)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range signals {
			_ = reaper.Reap()
		}
	}()
	defer func() { signal.Stop(signals); close(signals); <-done }()
	run := New(reaper.Default).Runner()
	var before int
	for i := range 10 {
		err := run.Run(t.Context(), exec.Command("sh", "-c", "exit 3"))
		if exit := new(runsc.ExitError); !errors.As(err, &exit) || exit.Code != 3 {
			t.Fatal(err)
		}
		if i == 0 {
			before = open(t)
		}
	}
	if now := open(t); now > before {
		t.Errorf("%d descriptors are open, %d were before", now, before)
	}
}

func open(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}
