package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strings"
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
	if leaseOver(dir) {
		t.Error("a node that never had a lease has lost it")
	}
	now := rights.SinceBoot()
	if err := rights.WriteLease(dir, rights.Lease{Node: "a", Sleep: now - time.Minute, End: now + time.Hour}); err != nil {
		t.Fatal(err)
	}
	if leaseOver(dir) {
		t.Error("a lease that lasts is over")
	}
	if err := rights.WriteLease(dir, rights.Lease{Node: "a", Sleep: now - time.Minute, End: now}); err != nil {
		t.Fatal(err)
	}
	if !leaseOver(dir) {
		t.Error("a lease that is over lasts")
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
