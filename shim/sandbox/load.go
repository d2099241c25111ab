package sandbox

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"

	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A flat wake restores a sandbox that runs before its memory is loaded. The sidecar, a process in the container's control
// group, hands it the memory chunk by chunk, what is asked for first, each compared with its checksum before. From the end of
// the step *restore* until all is there the workload is *loading*: it is awake, and whatever needs the whole of its memory, a
// hibernation, waits.

// loading is a sandbox whose memory still comes.
type loading struct {
	*runsc.Loading
	generation int // of the sandbox
	snapshot   *snapshot.Snapshot
	way        *way
	begun      time.Time
	ended      chan struct{} // closed when the workload is loading no more
}

// byLoss is the reason of the wake that follows when the memory of a sandbox could not be loaded.
const byLoss = "memory"

// loadWay says whether to restore a snapshot while its memory is loaded, and if not, why, in spite of the configuration.
func (w *Workload) loadWay(ctx context.Context, y *way) (flat bool, why string) {
	if w.config.Load != config.LoadFlat || !y.stored && y.snapshot.Size() < w.config.FlatFrom {
		return false, ""
	}
	w.mu.Lock()
	imported := w.export != nil && w.root().state == lifecycle.Created
	w.mu.Unlock()
	switch {
	case imported: // it never starts cold, so all must be right before it runs
		return false, "it is restored from a checkpoint"
	case w.sidecar == nil:
		return false, "there is no sidecar at " + w.config.Sidecar
	}
	serves, err := w.sidecar.Version(ctx)
	if err != nil {
		return false, fmt.Sprintf("the sidecar can't be used: %v", err)
	}
	mine, err := w.runsc.Version(ctx)
	if err != nil || serves != mine {
		return false, fmt.Sprintf("the sidecar serves runsc %s, this is %s", serves, mine)
	}
	return true, ""
}

// findSidecar finds the program for flat wakes: of a kept runsc the one beside it, else the configured one. Without it wakes are plain, and say so.
func (w *Workload) findSidecar() {
	var found *runsc.Sidecar
	path, err := w.config.SidecarPath()
	if beside := w.runsc.SidecarBeside(); beside != "" && w.runsc.Binary() != w.runsc.Path {
		path, err = beside, nil
	}
	if err == nil {
		found = &runsc.Sidecar{Path: path, CacheDir: w.config.RunDir, Runner: w.opts.Runner}
	} else {
		w.opts.Log.Debug("sidecar", "error", err)
	}
	w.sidecar = found
}

// restorePlain loads all memory before the sandbox runs.
func (w *Workload) restorePlain(ctx context.Context, y *way) error {
	err := w.runsc.Restore(ctx, w.opts.ID, runsc.RestoreOptions{Bundle: w.places.sandbox(), ImagePath: y.snapshot.ImageDir()})
	if err != nil {
		return err
	}
	return w.restoreMembers(ctx, y.snapshot.ImageDir())
}

// restoreFlat returns when the sandbox runs. What becomes of its memory, awaitLoad sees to.
func (w *Workload) restoreFlat(ctx context.Context, y *way) error {
	l, err := w.startLoading(y)
	if err != nil {
		return err
	}
	o := runsc.RestoreOptions{Bundle: w.places.sandbox(), ImagePath: l.Dir(), Background: true, Sidecar: w.sidecar}
	o.Runner = w.bornRunner()
	if err := w.runsc.Restore(ctx, w.opts.ID, o); err != nil {
		return err
	}
	return w.restoreMembers(ctx, l.Dir())
}

func (w *Workload) startLoading(y *way) (*loading, error) {
	s := y.snapshot
	o := runsc.SidecarOptions{Directory: s.ImageDir(), ChunkSize: snapshot.ChunkSize, Parallel: loadsAtOnce(), First: s.Manifest().FirstChunks()}
	for _, f := range s.Manifest().Files {
		o.Files = append(o.Files, runsc.SidecarFile{Name: f.Name, Size: f.Size, CRC32C: f.CRC32C})
	}
	o.Remote = y.remote()
	l, err := runsc.StartLoading(w.places.loading(), o)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loading = &loading{Loading: l, generation: w.generation, snapshot: s, way: y, begun: w.opts.Now(), ended: make(chan struct{})}
	return w.loading, nil
}

// loadsAtOnce is how many chunks are read at a time: what a fault waits for stands behind so many others. The sidecar takes fewer
// where its control group has less of the processors.
func loadsAtOnce() int { return min(max(2, runtime.NumCPU()), 8) }

// awaitLoad sees to the memory of a restored sandbox: once all is there, the snapshot's files are needed no more. When it
// can't come, the sandbox is ended, and sandboxExited sees to the rest.
func (w *Workload) awaitLoad(t *transition, l *loading) {
	timer := time.NewTimer(w.config.RunscTimeout)
	defer timer.Stop()
	select {
	case <-l.Done():
	case <-l.ended: // with its sandbox
		return
	case <-timer.C:
		l.Abandon(fmt.Errorf("not all is loaded within %v (runsc-timeout): %w", w.config.RunscTimeout, runsc.ErrDeadline))
	}
	bytes, ok := l.Loaded()
	if !ok {
		w.killSandbox(l.generation)
		return
	}
	w.keepTouched(l.generation, l.snapshot, l.OutOfTurn())
	<-t.done // it may end before the wake has
	w.noteLoad(t, l, bytes)
	w.noteMends(t, l)
	l.way.dropped()
	w.loaded(l)
	if err := l.Close(); err != nil {
		w.opts.Log.Warn("sidecar", "error", err)
	}
	if !l.way.stored {
		w.uncache(l.snapshot)
	}
}

// noteMends tells of chunks that were wrong on the node, and came from the store while somebody waited for them. The node's own
// snapshot is set aside then.
func (w *Workload) noteMends(t *transition, l *loading) {
	chunks, first := l.Mended()
	if chunks == 0 || l.way.stored {
		return
	}
	why := fmt.Sprintf("%d chunks of the node's snapshot %d were read from the store: %s", chunks, l.snapshot.Sequence(), first)
	w.opts.Log.Error("a snapshot is damaged, and was mended from the store", "id", t.record.GetId(), "sequence", l.snapshot.Sequence(),
		"chunks", chunks, "first", first)
	if err := w.local.Quarantine(l.snapshot, why); err != nil {
		w.opts.Log.Error("a damaged snapshot could not be set aside", "error", err)
	}
	w.amend(t, func(record *shimv1.Transition) {
		if record.Detail != "" {
			record.Detail += "; "
		}
		record.Detail += why
	})
}

// loaded ends the loading that is l, if it still goes on.
func (w *Workload) loaded(l *loading) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.loading == l {
		w.loading = nil
		close(l.ended)
		w.announce(nil)
	}
}

// noteLoad adds the load to the wake's record, as a step.
func (w *Workload) noteLoad(t *transition, l *loading, bytes int64) {
	now := w.opts.Now()
	w.amend(t, func(record *shimv1.Transition) {
		record.Steps = append(record.Steps, &shimv1.Step{
			Name: "load", Ms: milliseconds(now.Sub(l.begun)), StartMs: milliseconds(l.begun.Sub(t.start)),
		})
	})
	w.opts.Log.Debug("loaded", "id", t.record.GetId(), "bytes", bytes, "ms", milliseconds(now.Sub(l.begun)))
}

// amend changes the record of a wake that has ended, unless another has followed.
func (w *Workload) amend(t *transition, change func(*shimv1.Transition)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.last.wake.GetId() != t.record.GetId() {
		return
	}
	record := proto.CloneOf(w.last.wake)
	change(record)
	w.last.wake = record
	w.announce(record)
}

// killSandbox ends one sandbox, if it is still the workload's.
func (w *Workload) killSandbox(generation int) {
	w.mu.Lock()
	pid := w.sandboxPid
	current := generation == w.generation && !w.expected
	w.mu.Unlock()
	if !current || pid == 0 {
		return
	}
	if err := identify(pid).kill(); err != nil {
		w.opts.Log.Error("end a sandbox whose memory can't be loaded", "error", err)
	}
}

// takeLoading is the loading of a sandbox that has ended, or is about to, if its memory was not all there. Whoever waits for its
// end waits on until the caller closes ended.
func (w *Workload) takeLoading() *loading {
	w.mu.Lock()
	defer w.mu.Unlock()
	l := w.loading
	w.loading = nil
	return l
}

// stop ends the sidecar of a sandbox that we have ended. Its error is what the sidecar found wrong with the snapshot, if
// anything.
func (l *loading) stop() error {
	err := l.Close()
	if e := l.Err(); !errors.Is(e, runsc.ErrSidecarEnded) { // which is our own doing
		err = errors.Join(err, l.asSnapshotError(e))
	}
	return err
}

// toldWithin is how long a sidecar may take to notice the end of its sandbox.
const toldWithin = 2 * time.Second

// why waits for what the sidecar says of a sandbox that has ended by itself. failure is why its memory could not be loaded;
// nil: it ended for reasons of its own.
func (l *loading) why() (failure, err error) {
	timer := time.NewTimer(toldWithin)
	defer timer.Stop()
	select {
	case <-l.Done():
		failure = l.asSnapshotError(l.Err())
	case <-timer.C:
	}
	return failure, l.Close()
}

// asSnapshotError makes what the sidecar found of a snapshot be an error of the snapshot.
func (l *loading) asSnapshotError(err error) error {
	s := l.snapshot
	if err != nil && l.way.stored {
		return fmt.Errorf("load snapshot %d from the store: %w", s.Sequence(), err)
	}
	var e *runsc.LoadError
	if errors.As(err, &e) && e.Corrupt {
		err = fmt.Errorf("%w (%s)", &snapshot.CorruptError{File: e.File, Chunk: e.Chunk, Reason: "found while it was loaded"}, e.Reason)
	}
	if err != nil {
		err = fmt.Errorf("load snapshot %d: %w", s.Sequence(), err)
	}
	return err
}

// loadEnds waits until no memory is being loaded any more.
func (w *Workload) loadEnds(ctx context.Context) error {
	for {
		w.mu.Lock()
		l := w.loading
		w.mu.Unlock()
		if l == nil {
			return nil
		}
		select {
		case <-l.ended:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// lost follows the policy when a sandbox has ended since its memory could not be loaded. It is not restored again: it has
// run, and its peers have seen what it did. false: the container ends with it.
func (w *Workload) lost(cause error) bool {
	if w.starvedNow() { // the kernel ended it
		return false
	}
	w.mu.Lock()
	if w.root().state != lifecycle.Running {
		w.mu.Unlock()
		return false
	}
	t, err := w.begin(lifecycle.Lose, newTransition("wake", byLoss, "", w.config.WakeTimeout, w.opts.Now, w.note))
	w.mu.Unlock()
	if err != nil {
		return false
	}
	if err := w.journal.Begin(t.record.GetKind(), t.record.GetId()); err != nil {
		w.opts.Log.Warn("journal", "error", err)
	}
	w.opts.Log.Error("the memory of a woken sandbox could not be loaded", "id", t.record.GetId(), "error", cause)
	if err := t.step("close", w.shut); err != nil {
		w.opts.Log.Error("gate", "error", err)
	}
	if err := w.discard(t); err != nil {
		cause = errors.Join(cause, err)
	}
	w.giveUp(t, w.setAside(t, cause))
	return true
}

// shut has the kernel and the daemon hold what comes, as for a sleeper.
func (w *Workload) shut(ctx context.Context) error {
	if w.link == nil {
		return nil
	}
	w.watchPackets()
	if err := w.disconnect(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	ports := w.ports
	w.mu.Unlock()
	return w.closeGate(ctx, ports)
}
