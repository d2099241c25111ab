package command

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// A freeze is told by ls, inspect and why-awake at once, holds for hibernated and whoever comes after it, and ends.
func TestFreeze(t *testing.T) {
	web, db := shimtest.Start(t, "default", "web"), shimtest.Start(t, "default", "db")
	for _, s := range []*shimtest.Shim{web, db} {
		s.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { a.IdleTimeoutMs, a.MinAwakeMs = 300_000, 0 })
	}
	h := newHost(t, web, db)
	data := h.runDir + "/data"
	config := h.config("data-dir = \"" + data + "\"\n")
	out, _ := h.run(exitOK, "--config", config, "freeze", "default/w*", "--reason", "the release")
	wantText(t, out, "frozen: nothing that default/w* matches goes to sleep by itself, until hibernatectl unfreeze 'default/w*'")
	out, notes := h.run(exitOK, "--config", config, "ls")
	wantText(t, out, "no: frozen")
	wantText(t, notes, "default/w* is frozen since", "(the release)")
	if strings.Count(out, "frozen") != 1 {
		t.Errorf("not one is frozen:\n%s", out)
	}
	out, _ = h.run(exitOK, "--config", config, "inspect", "web")
	wantText(t, out, "[frozen]")
	h.daemon() // with the same data directory
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		out, _ = h.run(exitOK, "--config", "/dev/null", "why-awake", "web") // so that it is hibernated that tells it
		if strings.Contains(out, "[frozen]") {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("hibernated doesn't tell: %s", out)
		}
	}
	wantText(t, out, "stays so as long as this holds", "the release")
	out, _ = h.run(exitOK, "--config", config, "why-awake", "db")
	if strings.Contains(out, "[frozen]") {
		t.Errorf("another one is frozen, too: %s", out)
	}

	_, message := h.run(exitNotFound, "--config", config, "unfreeze", "web")
	wantText(t, message, `there is no freeze of "web"; there is default/w*`)
	h.run(exitOK, "--config", config, "freeze", "--until-boot")
	out, _ = h.run(exitOK, "--config", config, "unfreeze", "default/w*")
	wantText(t, out, "no longer frozen: default/w*", "still: the node is frozen")
	out, _ = h.run(exitOK, "--config", config, "why-awake", "db")
	wantText(t, out, "[frozen]")
	out, _ = h.run(exitOK, "--config", config, "unfreeze")
	wantText(t, out, "no longer frozen: the node")
	out, _ = h.run(exitOK, "--config", config, "unfreeze")
	wantText(t, out, "nothing was frozen")
	h.run(exitUsage, "freeze", "a", "b")
	h.run(exitUsage, "freeze", "a/b/c")
}

func TestWakeAll(t *testing.T) {
	var shims []*shimtest.Shim
	for _, id := range []string{"asleep-1", "asleep-2", "broken", "up", "over"} {
		shims = append(shims, shimtest.Start(t, "default", id))
	}
	other := shimtest.Start(t, "other", "asleep-3")
	for _, s := range append(shims[:3:3], other) {
		s.State("asleep")
	}
	shims[4].State("ended")
	running, second := make(chan struct{}, 1), make(chan struct{}, 3)
	most := func(s *shimtest.Shim) {
		s.OnWake(func(context.Context) error {
			select {
			case running <- struct{}{}:
			default:
				second <- struct{}{}
				return errors.New("two wake at once")
			}
			defer func() { <-running }()
			select { // as long as a wake takes, unless another comes
			case <-second:
				return errors.New("two wake at once")
			case <-time.After(50 * time.Millisecond):
				return nil
			}
		})
	}
	for _, s := range []*shimtest.Shim{shims[0], shims[1], other} {
		most(s)
	}
	shims[2].OnWake(func(context.Context) error { return errors.New("no runsc here") })
	h := newHost(t, append(shims, other)...)
	out, message := h.run(exitRefused, "wake", "--all", "--parallel", "1")
	wantText(t, out, "default/asleep-1: restored in 12 ms", "default/asleep-2: restored", "other/asleep-3: restored", "default/broken: failed: ", "no runsc here", "3 woke, 1 failed, 2 were not asleep")
	wantText(t, message, "1 of 6 did not wake")
	if len(shims[3].Wakes())+len(shims[4].Wakes()) != 0 {
		t.Error("one that doesn't sleep was asked to wake")
	}
	other.State("asleep")
	shims[0].State("asleep")
	out, _ = h.run(exitOK, "wake", "--all", "other/*", "-o", "json")
	var all struct{ Workloads []woken }
	if err := json.Unmarshal([]byte(out), &all); err != nil || len(all.Workloads) != 1 || all.Workloads[0].Outcome != "restored" {
		t.Errorf("%v: %s", err, out)
	}
	if len(shims[0].Wakes()) != 1 {
		t.Error("one that doesn't match was woken")
	}
	h.run(exitUsage, "wake", "--all", "--from", "3")
	h.run(exitUsage, "wake", "--all", "a", "b")
	h.run(exitUsage, "wake", "--all", "--parallel", "0")
}
