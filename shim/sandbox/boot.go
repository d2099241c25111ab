package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/undo"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
)

// createSandbox is boot as a step of Create.
func (w *Workload) createSandbox(ctx context.Context, _ CreateRequest, u *undo.Stack) error {
	u.Push("sandbox", w.freeSandbox)
	return w.boot(ctx)
}

// boot makes a sandbox whose process doesn't run yet, and watches it from then on.
func (w *Workload) boot(ctx context.Context) error {
	c := w.root()
	stdin, stdout, stderr := c.relay.Files()
	known, err := w.known(ctx)
	if err != nil {
		return fmt.Errorf("boot the sandbox: %w", err)
	}
	if err := w.mendGhosts(); err != nil {
		return fmt.Errorf("boot the sandbox: %w", err)
	}
	err = w.runsc.Create(ctx, w.opts.ID, runsc.CreateOptions{
		Bundle: w.places.sandbox(), PidFile: w.places.pidFile(), ConsoleSocket: c.relay.ConsoleSocket(),
		IO: runsc.IO{Stdin: stdin, Stdout: stdout, Stderr: stderr}, Runner: w.bornRunner(),
	})
	if err != nil {
		return fmt.Errorf("boot the sandbox: %w", err)
	}
	pid, err := readPid(w.places.pidFile())
	if err != nil {
		return fmt.Errorf("boot the sandbox: %w", err)
	}
	w.mu.Lock()
	w.generation++
	w.sandboxPid, w.madeBy, w.expected, w.unlinked = pid, known.of(), false, false
	generation, score := w.generation, w.podScore()
	w.mu.Unlock()
	if err := cgroup.SetOOMScore(pid, score); err != nil {
		w.opts.Log.Warn("out-of-memory score", "error", err)
	}
	exits := w.opts.Exits.Watch(pid)
	go func() { w.sandboxExited(generation, <-exits) }()
	for _, c := range w.inside() {
		if err := w.createMember(ctx, c); err != nil {
			return fmt.Errorf("boot the sandbox: %w", err)
		}
	}
	return nil
}

func readPid(path string) (int, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	pid, err := strconv.Atoi(string(bytes.TrimSpace(data)))
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("%s holds %q, not a pid", path, data)
	}
	return pid, nil
}

// freeSandbox ends the sandbox, whatever state it is in, and removes what runsc leaves behind. Its end is then our own
// doing, and no exit of the container. After one that has ended by itself no runsc is needed, whose start alone takes
// longer than all the rest of a container's end.
func (w *Workload) freeSandbox(ctx context.Context) error {
	w.stopAhead()
	return w.clearSandbox(ctx)
}

// clearSandbox is freeSandbox while nobody else makes or frees one.
func (w *Workload) clearSandbox(ctx context.Context) error {
	w.mu.Lock()
	w.expected = true
	sandbox := process{}
	if w.sandboxPid != 0 {
		sandbox = identify(w.sandboxPid)
	}
	unknown := w.sandboxPid == 0
	gone := !unknown && sandbox.Start == 0
	w.sandboxPid = 0
	w.mu.Unlock()
	// Its memory is freed while runsc starts, and goes even if runsc can't.
	err := sandbox.kill()
	if l := w.takeLoading(); l != nil {
		err = errors.Join(err, l.stop())
		close(l.ended)
	}
	nameFilestore(w.spec.Root.Path, w.opts.ID)
	var failed error
	if !gone || killGofer(w.runsc.Root, w.opts.ID) != nil {
		failed = w.runsc.Delete(ctx, w.opts.ID, true)
	}
	if unknown || failed != nil { // its making may have been cut short, or runsc's state of it be damaged
		err = errors.Join(err, killCommands(w.runsc.Root, w.opts.ID))
	}
	err = errors.Join(err, failed)
	for _, c := range w.inside() {
		if unknown || failed != nil {
			err = errors.Join(err, killCommands(w.runsc.Root, c.ID))
		}
		err = errors.Join(err, w.clearTraces(c))
	}
	return errors.Join(err, removeTraces(w.runsc.Root, w.opts.ID), removeFilestores(w.spec.Root.Path))
}

// versionTimeout bounds asking runsc for its version.
const versionTimeout = 10 * time.Second

// checkVersion refuses a runsc that can't be told apart from others: restoring under another version loses state.
func (w *Workload) checkVersion(ctx context.Context, _ CreateRequest, _ *undo.Stack) error {
	known, err := w.known(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", w.runsc.Binary(), err)
	}
	if known.version == "" || known.version == "VERSION_MISSING" {
		return fmt.Errorf("%s was built without a version: a snapshot could be restored under another runsc unnoticed; "+
			"use the one that `make tools` builds, or stamp runsc/version.version", w.runsc.Binary())
	}
	if err := w.checkFeatures(known); err != nil {
		return err
	}
	if kept, err := w.shelf().Find(known.version, known.digest); err == nil { // which stays when another is installed
		return w.useRunsc(ctx, kept.Path)
	}
	return nil
}
