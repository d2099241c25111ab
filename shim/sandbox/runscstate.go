package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// runsc writes its state file in place, so that one which is killed while it writes leaves half of it, or nothing, and no
// runsc could then do anything with the sandbox any more.

// pauseCall and resumeCall are runsc's commands. Each writes its state after its work is done: where the file is damaged, the
// sandbox is in the new state, and the file is written for it.
func (w *Workload) pauseCall(ctx context.Context) error {
	if err := unix.Access(w.runsc.Root, unix.W_OK); err != nil { // it would pause, could not note that, and resume no more
		return fmt.Errorf("pause: %s can't be written: %w", w.runsc.Root, err)
	}
	return w.guardState("paused", func() error { return w.runsc.Pause(ctx, w.opts.ID) })
}

func (w *Workload) resumeCall(ctx context.Context) error {
	return w.guardState("running", func() error { return w.runsc.Resume(ctx, w.opts.ID) })
}

func (w *Workload) guardState(status string, call func() error) error {
	path := filepath.Join(w.runsc.Root, stateOf(w.opts.ID))
	before, _ := os.ReadFile(path) // without one there is nothing to mend
	err := call()
	if err == nil || !json.Valid(before) {
		return err
	}
	if now, e := os.ReadFile(path); e != nil || json.Valid(now) {
		return err
	}
	if e := mendState(path, before, status); e != nil {
		w.opts.Log.Error("runsc's state of the sandbox is damaged", "error", e)
	} else {
		w.opts.Log.Warn("runsc was killed while it wrote its state of the sandbox, which is mended", "status", status)
	}
	return err
}

// noteState has runsc's state file say whether the sandbox is paused, where it says otherwise.
func (w *Workload) noteState(paused bool) {
	status := "running"
	if paused {
		status = "paused"
	}
	path := filepath.Join(w.runsc.Root, stateOf(w.opts.ID))
	before, err := os.ReadFile(path)
	if err != nil {
		return // without one there is nothing to mend
	}
	var noted struct {
		Status string `json:"status"`
	}
	if err = json.Unmarshal(before, &noted); err == nil && noted.Status != status {
		err = mendState(path, before, status)
		w.opts.Log.Warn("runsc had not noted what it did to the sandbox", "noted", noted.Status, "status", status)
	}
	if err != nil {
		w.opts.Log.Error("runsc's state of the sandbox", "error", err)
	}
}

// mendState writes what was in runsc's state file, with another status.
func mendState(path string, before []byte, status string) error {
	var state map[string]json.RawMessage
	if err := json.Unmarshal(before, &state); err != nil {
		return err
	}
	if _, ok := state["status"]; !ok {
		return fmt.Errorf("%s has no status", path)
	}
	state["status"] = fmt.Appendf(nil, "%q", status)
	after, err := json.Marshal(state)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, after, 0o640, atomicfile.Options{})
}
