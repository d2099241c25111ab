package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/api/rights"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
)

// What a dead shim has left of a workload with an identity is taken down once the node's lease is over, and not before; what lives, and what has no
// identity, is left alone.
func TestAbandoned(t *testing.T) {
	dir := t.TempDir()
	dead := exec.CommandContext(t.Context(), "true")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	start, err := handover.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []handover.Record{
		{ID: "dead", Identity: "db", Pid: dead.Process.Pid, StartTime: 1},
		{ID: "reused", Identity: "queue", Pid: os.Getpid(), StartTime: start + 1},
		{ID: "plain", Pid: dead.Process.Pid, StartTime: 1},
		{ID: "alive", Identity: "cache", Pid: os.Getpid(), StartTime: start},
	} {
		r.Namespace, r.Bundle = "default", "/bundles/"+r.ID
		if err := handover.WriteRecord(dir, r); err != nil {
			t.Fatal(err)
		}
	}
	var log testlog.Buffer
	var ended []string
	broken := true
	a := &abandoned{runDir: dir, log: slog.New(slog.NewTextHandler(&log, nil)), told: map[string]bool{}, reap: func(_ context.Context, r handover.Record) error {
		if broken && r.ID == "dead" {
			return errors.New("runsc hangs")
		}
		ended = append(ended, r.ID)
		return handover.RemoveRecord(dir, r.Namespace, r.ID)
	}}
	if _, ok := leaseLeft(dir); ok {
		t.Error("a node that never had a lease has lost it")
	}
	now := rights.SinceBoot()
	if err := rights.WriteLease(dir, rights.Lease{Node: "a", Sleep: now - time.Minute, End: now + time.Hour}); err != nil {
		t.Fatal(err)
	}
	if left, ok := leaseLeft(dir); !ok || left < 59*time.Minute {
		t.Errorf("a lease that lasts is over in %v", left)
	}
	if err := rights.WriteLease(dir, rights.Lease{Node: "a", Sleep: now - time.Minute, End: now}); err != nil {
		t.Fatal(err)
	}
	if left, ok := leaseLeft(dir); !ok || left > 0 {
		t.Errorf("a lease that is over lasts for %v", left)
	}
	all := func(handover.Record) bool { return true }
	for range 2 {
		if n, err := a.end(t.Context(), all); err == nil || n == 0 {
			t.Errorf("%d, %v", n, err)
		}
	}
	if got := strings.Count(log.String(), "can't be ended"); got != 1 {
		t.Errorf("told %d times: %s", got, log.String())
	}
	broken = false
	if n, err := a.end(t.Context(), func(r handover.Record) bool { return r.Identity == "queue" }); err != nil || n != 0 {
		t.Errorf("%d, %v", n, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); a.run(ctx) }()
	for !ranOut(dir, "dead") {
		time.Sleep(time.Millisecond)
	}
	cancel()
	<-done
	slices.Sort(ended)
	if !slices.Equal(ended, []string{"dead", "reused"}) {
		t.Errorf("ended %v", ended)
	}
}

// ranOut is true when there is no record any more.
func ranOut(dir, id string) bool {
	records, err := handover.ListRecords(dir)
	return err == nil && !slices.ContainsFunc(records, func(r handover.Record) bool { return r.ID == id })
}

// TestHungShimsSandbox: when the lease is over the sandbox of a shim that is stopped is killed; not that of one that answers, and would end it itself, and
// nothing else that the shim has started.
func TestHungShimsSandbox(t *testing.T) {
	for name, answers := range map[string]error{"hangs": context.DeadlineExceeded, "answers": nil} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			// A shim with a helper and a sandbox, by their names.
			shim := exec.CommandContext(t.Context(), "bash", "-c", `(exec -a helper sleep 1000) & (exec -a runsc-sandbox sleep 1000) & echo $!; wait`)
			out, err := shim.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			shim.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := shim.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = syscall.Kill(-shim.Process.Pid, syscall.SIGKILL); _ = shim.Wait() }()
			var sandbox int
			if _, err := fmt.Fscan(out, &sandbox); err != nil {
				t.Fatal(err)
			}
			for len(sandboxesOf(shim.Process.Pid)) == 0 { // it has its name by and by
				time.Sleep(time.Millisecond)
			}
			helpers := len(children(t, shim.Process.Pid))
			_ = syscall.Kill(shim.Process.Pid, syscall.SIGSTOP)
			for !isStopped(t, shim.Process.Pid) { // until then it may yet see to a child's end
				time.Sleep(time.Millisecond)
			}
			start, err := handover.StartTime(shim.Process.Pid)
			if err != nil {
				t.Fatal(err)
			}
			if err := handover.WriteRecord(dir, handover.Record{Namespace: "default", ID: "db", Identity: "db", Pid: shim.Process.Pid, StartTime: start}); err != nil {
				t.Fatal(err)
			}
			asked := 0
			a := &abandoned{
				runDir: dir, log: slog.New(slog.DiscardHandler), told: map[string]bool{},
				answers: func(context.Context, handover.Record) error { asked++; return answers },
			}
			if n, err := a.end(t.Context(), func(handover.Record) bool { return true }); n != 0 || err != nil || asked != 1 {
				t.Errorf("%d, %v, asked %d times", n, err, asked)
			}
			for answers != nil && isSandbox(sandbox) { // SIGKILL takes its moment
				time.Sleep(time.Millisecond)
			}
			if isSandbox(sandbox) != (answers == nil) || len(children(t, shim.Process.Pid)) != helpers {
				t.Errorf("the sandbox lives: %t, %d of %d children are there", isSandbox(sandbox), len(children(t, shim.Process.Pid)), helpers)
			}
		})
	}
}

func isStopped(t *testing.T, pid int) bool {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(stat), ") T ")
}

// children are a process's, zombies included.
func children(t *testing.T, pid int) []string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(string(text))
}
