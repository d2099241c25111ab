package sandbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// Several runscs may lie side by side (key runsc-dir). What one has saved, only that very one restores: a workload that wakes is made by
// the runsc that has put it to sleep, and stays with it; what starts afresh is made by the configured one. Which one it is, the bundle's
// state file says, for whoever comes after the shim.

func (w *Workload) shelf() runsc.Shelf {
	return runsc.Shelf{Dir: w.config.RunscShelf(), CacheDir: w.config.RunDir, Runner: w.opts.Runner}
}

// of is what is known of a runsc by its name.
func (f *facts) of() eligible.Runsc { return eligible.Runsc{Version: f.version, SHA256: f.digest} }

// runscError says which runsc a snapshot needs, and where it belongs. It is a runsc.ErrVersion.
type runscError struct {
	sequence     uint64
	needs, ours  eligible.Runsc
	path         string // of ours
	place, found string // on the shelf, and what is there
}

func (e *runscError) Error() string {
	text := fmt.Sprintf("snapshot %d was made by runsc %s, this is %s: %v", e.sequence, e.needs.Version, e.ours.Version, runsc.ErrVersion)
	if e.needs.SHA256 == "" {
		return text
	}
	if e.needs.Version == e.ours.Version {
		text += fmt.Sprintf(" (%s has sha256 %s)", e.path, e.ours.SHA256)
	}
	return fmt.Sprintf("%s; needed is the one with sha256 %s: put it at %s, and its checkpointgofer beside it (%s)", text, e.needs.SHA256, e.place, e.found)
}

func (e *runscError) Unwrap() error { return runsc.ErrVersion }

// takeRunsc has whatever is done from now on be done by the runsc that made a snapshot. A sandbox of another one's is freed. Only a
// transition calls it, or Create. Errors: *runscError.
func (w *Workload) takeRunsc(ctx context.Context, m snapshot.Manifest) error {
	needs := eligible.RunscOf(m)
	known, err := w.known(ctx)
	if err == nil && needs.Is(known.of()) {
		return nil
	}
	there, cerr := w.configured(ctx) // it runs on a kept one, and this is perhaps from another node, of the configured one
	if cerr == nil && needs.Is(there.runsc) {
		return w.useRunsc(ctx, there.path)
	}
	kept, kerr := w.shelf().Find(needs.Version, needs.SHA256)
	if kerr == nil {
		w.opts.Log.Info("a runsc that is kept for what it has put to sleep", "path", kept.Path, "version", kept.Version, "sequence", m.Sequence)
		return w.useRunsc(ctx, kept.Path)
	}
	if cerr != nil { // there is none to tell of
		return errors.Join(err, cerr)
	}
	found := kerr.Error()
	if e, ok := errors.AsType[*runsc.Error](kerr); ok {
		found = e.Message
	}
	return &runscError{m.Sequence, needs, there.runsc, w.runsc.Path, w.shelf().Place(needs.SHA256), found}
}

// takeConfigured has the workload be made by the configured runsc again, since it starts afresh.
func (w *Workload) takeConfigured(ctx context.Context) error {
	there, err := w.configured(ctx)
	if err != nil {
		return err
	}
	return w.useRunsc(ctx, there.path)
}

// bootConfigured has a workload that starts afresh have a sandbox of the configured runsc, as Create has made it but where something slept.
func (w *Workload) bootConfigured(ctx context.Context) error {
	if err := w.takeConfigured(ctx); err != nil {
		return err
	}
	if err := w.bootOnce(ctx); err != nil {
		return err
	}
	known, err := w.known(ctx)
	if err == nil {
		w.give(w.fresh(known))
	}
	return err
}

// installed is the runsc that the configuration names.
type installed struct {
	runsc eligible.Runsc
	path  string // the kept one's, where it is kept, too: that stays when another is installed in its place
}

func (w *Workload) configured(ctx context.Context) (installed, error) {
	c := &runsc.Client{Path: w.runsc.Path, CacheDir: w.config.RunDir, LogDir: w.places.logs(), Runner: w.opts.Runner}
	k, err := runsc.Describe(ctx, c)
	if err != nil {
		return installed{}, err
	}
	i := installed{eligible.Runsc{Version: k.Version, SHA256: k.SHA256}, w.runsc.Path}
	if kept, err := w.shelf().Find(k.Version, k.SHA256); err == nil {
		i.path = kept.Path
	}
	return i, nil
}

// useRunsc replaces the binary, and frees a sandbox that another has made. Where the shim dies, `delete` finds the new one as soon as
// something is made by it.
func (w *Workload) useRunsc(ctx context.Context, path string) error {
	if w.runsc.Binary() == path {
		return nil
	}
	w.mu.Lock()
	there := w.sandboxPid != 0 || w.ahead != nil
	w.mu.Unlock()
	if there {
		if err := w.freeSandbox(ctx); err != nil && !errors.Is(err, runsc.ErrMissing) {
			return fmt.Errorf("the sandbox of another runsc: %w", err)
		}
	}
	w.runsc.Use(path)
	w.findSidecar()
	return w.saveState()
}

// stayWith has a sandbox that runs be dealt with by the runsc that made it, after another was installed in its place. It says whether that is to be had.
func (w *Workload) stayWith(mine eligible.Runsc) bool {
	kept, err := w.shelf().Find(mine.Version, mine.SHA256)
	if err != nil {
		return false
	}
	w.runsc.Use(kept.Path)
	w.findSidecar()
	if err := w.saveState(); err != nil {
		w.opts.Log.Warn("state file", "error", err)
	}
	return true
}
