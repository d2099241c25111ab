package sandbox

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// A paused sleeper is not woken: the proxy waits, others are refused, and a packet is remembered.
func TestPausedSleeper(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare()
		w.state = lifecycle.Asleep
		if err := w.Pause(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		var illegal *lifecycle.IllegalError
		if err := w.Pause(t.Context(), "c"); !errors.As(err, &illegal) {
			t.Errorf("paused twice: %v", err)
		}
		for _, why := range []string{ByRequest, "exec", "signal", byPacket} {
			if _, err := w.Wake(t.Context(), why, ""); !errors.Is(err, ErrPaused) {
				t.Errorf("a wake by %s: %v", why, err)
			}
		}
		if w.knocked != byPacket {
			t.Error("the packet was forgotten")
		}
		ctx, leave := context.WithCancel(t.Context())
		left, stayed := make(chan error), make(chan error)
		go func() { _, err := w.Wake(ctx, "connection", ""); left <- err }()
		go func() { _, err := w.Wake(t.Context(), "connection", ""); stayed <- err }()
		synctest.Wait()
		leave()
		if err := <-left; !errors.Is(err, context.Canceled) {
			t.Errorf("who left: %v", err)
		}
		w.inputCame()
		synctest.Wait()
		if w.knocked != byInput || w.inputWakes {
			t.Error("the input was forgotten, or its wake waits")
		}
		w.knocked, w.killed = "", true // a wake that begins tells by that it can't
		if err := w.Resume(t.Context(), "c"); err != nil {
			t.Fatal(err)
		}
		if err := <-stayed; !errors.Is(err, ErrKilled) {
			t.Errorf("who stayed did not go on: %v", err)
		}
		if state := w.root().state; state != lifecycle.Running || w.state != lifecycle.Asleep {
			t.Errorf("resumed it is %v, %v", state, w.state)
		}
	})
}

// While a checkpoint is written the sandbox is neither resumed nor put to sleep, and no second one begins.
func TestClaimedCheckpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := bare()
		w.state, w.root().state, w.resumed = lifecycle.Asleep, lifecycle.Paused, make(chan struct{})
		asleep, release, err := w.claimCheckpoint(t.Context())
		if err != nil || !asleep {
			t.Fatal(asleep, err)
		}
		if _, _, err := w.claimCheckpoint(t.Context()); !errors.Is(err, ErrPrecondition) {
			t.Errorf("a second one: %v", err)
		}
		if got := codes(w.blockers(true)); got != "paused busy" {
			t.Errorf("blockers %q", got)
		}
		resumed := make(chan error, 1)
		go func() { resumed <- w.Resume(t.Context(), "c") }()
		synctest.Wait()
		select {
		case err := <-resumed:
			t.Errorf("resumed meanwhile: %v", err)
		default:
		}
		release()
		if err := <-resumed; err != nil {
			t.Error(err)
		}
		for _, state := range []lifecycle.Container{lifecycle.Created, lifecycle.Stopped} {
			w.root().state = state
			if _, _, err := w.claimCheckpoint(t.Context()); !errors.Is(err, ErrPrecondition) {
				t.Errorf("%v: %v", state, err)
			}
		}
	})
}
