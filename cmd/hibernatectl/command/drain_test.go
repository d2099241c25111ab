package command

import (
	"context"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/internal/cordon"
)

// What can sleep does, in the order of what it takes; who can't is named with its reasons, and the node stays cordoned until told otherwise.
func TestDrain(t *testing.T) {
	var mu sync.Mutex
	var order []string
	shim := func(id string, memory uint64, state string, refusal error) *shimtest.Shim {
		s := shimtest.Start(t, "default", id)
		s.Update(func(status *shimv1.StatusResponse, _ *shimv1.ActivityResponse) {
			status.MemoryBytes, status.State = memory, state
			if refusal != nil {
				status.Blockers = []*shimv1.Reason{{Code: "terminal", Detail: "it has a terminal"}}
			}
		})
		s.OnHibernate(func(context.Context) error {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, id)
			return refusal
		})
		return s
	}
	big, small := shim("big", 9<<20, "awake", nil), shim("small", 1<<20, "awake", nil)
	stuck := shim("stuck", 2<<20, "awake", errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "it has a terminal [terminal]"))
	sleeper, over := shim("asleep", 0, "asleep", nil), shim("over", 0, "ended", nil)
	h := newHost(t, big, small, stuck, sleeper, over)
	data := filepath.Join(h.runDir, "data")
	if err := cordon.Write(data, cordon.Note{}); err != nil { // the directory has to be there for a look at its disk
		t.Fatal(err)
	}
	out, errs := h.run(exitRefused, "drain", "--data-dir", data, "--parallel", "1", "--force")
	wantText(t, out, "default/small: asleep", "default/big: asleep", "default/asleep: asleep already", "default/over: does not run",
		"5 workloads, 4 done, 1 not", "  default/stuck: kept awake: ", "it has a terminal")
	wantText(t, errs, "1 of 5 workloads")
	if !slices.Equal(order, []string{"small", "stuck", "big"}) {
		t.Errorf("in the order %v", order)
	}
	if r := big.Hibernations()[0]; r.GetReason() != byDrain || !r.GetManual() || !r.GetUrgent() {
		t.Errorf("asked for %v", r)
	}
	if n, err := cordon.Read(data); err != nil || n == nil || n.Why != byDrain || n.Since.IsZero() {
		t.Errorf("the cordon is %+v, %v", n, err)
	}
	var all []drained
	out, _ = h.run(exitRefused, "drain", "--data-dir", data, "-o", "json")
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(all, func(d drained) bool { return d.ID == "stuck" })
	if r := all[i].Reasons; len(r) != 1 || r[0].Code != "terminal" || all[i].Outcome != "kept-awake" {
		t.Errorf("%+v", all[i])
	}
	if stuck.Hibernations()[1].GetUrgent() {
		t.Error("without --force it is urgent")
	}
}

// What is in use is tried again.
func TestDrainTriesAgain(t *testing.T) {
	s := shimtest.Start(t, "default", "web")
	tries := 0
	s.OnHibernate(func(context.Context) error {
		if tries++; tries < 3 {
			return errgrpc.ToGRPCf(errdefs.ErrAborted, "somebody talks to it")
		}
		return nil
	})
	h := newHost(t, s)
	out, _ := h.run(exitOK, "drain", "--data-dir", h.runDir, "--cordon=false")
	wantText(t, out, "default/web: asleep (", "1 workloads, 1 done, 0 not")
	if n, err := cordon.Read(h.runDir); n != nil || err != nil {
		t.Errorf("cordoned: %v, %v", n, err)
	}
}

func TestCordon(t *testing.T) {
	h := newHost(t, shimtest.Start(t, "default", "web"))
	data := t.TempDir()
	h.run(exitOK, "cordon", "--data-dir", data, "--reason", "new disk")
	h.run(exitOK, "cordon", "--data-dir", data, "--until-boot")
	if n, err := cordon.Read(h.runDir); err != nil || n == nil || !n.UntilBoot {
		t.Errorf("until boot: %+v, %v", n, err)
	}
	out, _ := h.run(exitOK, "uncordon", "--data-dir", data, "--until-boot")
	wantText(t, out, "no longer cordoned")
	if n, err := cordon.Read(h.runDir, data); err != nil || n == nil || n.Why != "new disk" {
		t.Errorf("the other one: %+v, %v", n, err)
	}
	h.run(exitOK, "uncordon", "--data-dir", data)
	out, _ = h.run(exitOK, "uncordon", "--data-dir", data)
	wantText(t, out, "it was not cordoned")
}

// No more is written at once than there is room for, but by one alone.
func TestRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &room{changed: make(chan struct{}), free: func() (uint64, error) { return 10, nil }}
		enter := func(bytes uint64) <-chan error {
			done := make(chan error, 1)
			go func() { done <- r.enter(t.Context(), bytes) }()
			synctest.Wait()
			return done
		}
		if err := <-enter(50); err != nil {
			t.Error("one alone:", err)
		}
		second := enter(1)
		select {
		case <-second:
			t.Fatal("two at once are too much")
		default:
		}
		r.leave(50)
		if err := <-second; err != nil {
			t.Error(err)
		}
		if err := <-enter(9); err != nil {
			t.Error("both fit:", err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := r.enter(ctx, 1); err == nil {
			t.Error("there is no time left")
		}
		if r.running != 2 || r.taken != 10 {
			t.Errorf("%d with %d bytes", r.running, r.taken)
		}
	})
}

func TestUploadOf(t *testing.T) {
	for name, c := range map[string]struct {
		copies   *daemonv1.Copies
		sequence uint64
		noDaemon error
		why      string
		over     bool
	}{
		"there":             {&daemonv1.Copies{DurableSequence: 3}, 3, nil, "", true},
		"an older one":      {&daemonv1.Copies{DurableSequence: 2}, 3, nil, "it is being uploaded", false},
		"it lacks":          {&daemonv1.Copies{DurableSequence: 3, LackingUnixMs: 1}, 3, nil, "it is being uploaded", false},
		"tried again":       {&daemonv1.Copies{Error: "away"}, 3, nil, "away", false},
		"not tried again":   {&daemonv1.Copies{Error: "fenced", Final: true}, 3, nil, "fenced", true},
		"handed over":       {&daemonv1.Copies{LocalSequence: 3, DurableSequence: 2}, 3, nil, "", true},
		"not seen yet":      {&daemonv1.Copies{LocalSequence: 2, DurableSequence: 2}, 3, nil, "it is being uploaded", false},
		"no store":          {nil, 3, nil, "no store is configured", true},
		"no daemon for now": {nil, 3, errNoDaemon, "hibernated is not running", false},
	} {
		if why, over := uploadOf(c.copies, c.sequence, c.noDaemon); !strings.HasPrefix(why, c.why) || (c.why == "") != (why == "") || over != c.over {
			t.Errorf("%s: %q, %v", name, why, over)
		}
	}
}
