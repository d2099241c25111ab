package sandbox

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// byInput is the reason of a wake by what a client writes to a container's standard input, as attach does.
const byInput = "input"

// inputTime is how long after such a word no hibernation begins where the process has not read it: it would have it only at its next wake.
const inputTime = time.Second

// inputCame is called when there is something new in a container's standard input. It doesn't wait.
func (w *Workload) inputCame() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lastInput = w.opts.Now()
	if w.inputWakes || w.state != lifecycle.Asleep && w.state != lifecycle.Hibernating {
		return
	}
	w.inputWakes = true
	go w.wakeByInput()
}

func (w *Workload) wakeByInput() {
	ctx, cancel := context.WithTimeout(context.Background(), w.config.WakeTimeout)
	defer cancel()
	_, err := w.Wake(ctx, byInput, "")
	w.mu.Lock()
	w.inputWakes = false
	w.mu.Unlock()
	if err != nil && !errors.Is(err, ErrPaused) {
		w.opts.Log.Warn("input came for a sleeper that didn't wake: it has it when it does", "error", err)
	}
}

// toldNow is true while what a client has just written was not read. The caller holds w.mu.
func (w *Workload) toldNow() bool {
	if w.lastInput.IsZero() || w.opts.Now().Sub(w.lastInput) >= inputTime {
		return false
	}
	return slices.ContainsFunc(w.containers, func(c *Container) bool { return c.live() && c.relay != nil && c.relay.Unread() })
}
