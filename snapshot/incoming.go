package snapshot

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Incoming is a snapshot that is being written. It ends in Commit or Discard.
type Incoming struct {
	l        *Local
	sequence uint64
	parent   uint64
	lineage  string
	sealed   *Sealed
	done     bool
}

// Begin starts a snapshot and throws away what an earlier one left. The
// committed one is not touched.
func (l *Local) Begin(ctx context.Context) (*Incoming, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	h, err := l.headOrNew()
	if err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	seq, err := l.nextSequence(h)
	if err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	for _, name := range []string{incomingDir, fetchedDir} {
		if err := l.throwAway(name); err != nil {
			return nil, fmt.Errorf("begin snapshot: %w", err)
		}
	}
	if err := l.at("begin"); err != nil {
		return nil, fmt.Errorf("begin snapshot: %w", err)
	}
	in := &Incoming{l: l, sequence: seq, parent: cmp.Or(h.Restored, h.Sequence), lineage: h.Lineage}
	if err := os.MkdirAll(in.ImageDir(), 0o700); err != nil {
		return nil, errors.Join(fmt.Errorf("begin snapshot: %w", spaceError(err)), in.Discard())
	}
	l.emptyTrash()
	return in, nil
}

// nextSequence is above everything that ever got a number here, quarantined
// snapshots included.
func (l *Local) nextSequence(h Head) (uint64, error) {
	last := max(h.Sequence, l.above)
	seqs, err := l.sequences()
	if err != nil {
		return 0, err
	}
	quarantined, err := l.Quarantined()
	if err != nil {
		return 0, err
	}
	for _, q := range quarantined {
		seqs = append(seqs, q.Sequence)
	}
	for _, s := range seqs {
		last = max(last, s)
	}
	return last + 1, nil
}

// ImageDir is an empty directory for runsc checkpoint --image-path.
func (in *Incoming) ImageDir() string { return in.l.path(incomingDir, imageDir) }

// Sequence is the number it will have.
func (in *Incoming) Sequence() uint64 { return in.sequence }

// Discard deletes it. After Commit it does nothing; it may be called twice.
func (in *Incoming) Discard() error {
	if in.done {
		return nil
	}
	in.done = true
	if err := os.RemoveAll(in.l.path(incomingDir)); err != nil {
		return fmt.Errorf("discard snapshot %d: %w", in.sequence, err)
	}
	return nil
}

// Commit makes the sealed checkpoint, with m, the current snapshot and the
// state Asleep. Version, Sequence, Parent, Created, Lineage and Files of m
// are set here. On error the snapshot before is still the current one, and the
// incoming one is gone: ErrNotSealed, ErrEpoch, ErrNoSpace, ctx's error.
// ctx counts until head.json is replaced. The old snapshot is deleted in the
// background.
func (in *Incoming) Commit(ctx context.Context, m Manifest) (*Snapshot, error) {
	s, err := in.commit(ctx, m)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("commit snapshot %d: %w", in.sequence, err), in.Discard())
	}
	in.done = true
	return s, nil
}

func (in *Incoming) commit(ctx context.Context, m Manifest) (*Snapshot, error) {
	if in.sealed == nil || in.done {
		return nil, ErrNotSealed
	}
	before, err := in.l.headOrNew()
	if err != nil {
		return nil, err
	}
	if m.Epoch < before.Epoch {
		return nil, fmt.Errorf("%w: %d, head has %d", ErrEpoch, m.Epoch, before.Epoch)
	}
	m = in.complete(m)
	if err := in.writeManifest(ctx, m); err != nil {
		return nil, err
	}
	if err := in.place(ctx); err != nil {
		return nil, err
	}
	if err := in.l.point(ctx, before, m); err != nil {
		return nil, errors.Join(err, in.l.takeBack(in.sequence))
	}
	in.l.dropOthers(in.sequence)
	return &Snapshot{dir: in.l.sequencePath(in.sequence), manifest: m}, nil
}

func (in *Incoming) writeManifest(ctx context.Context, m Manifest) error {
	if _, err := checkManifest(m); err != nil {
		return err
	}
	data, err := encodeDocument(manifestFormat, ManifestVersion, m)
	if err != nil {
		return err
	}
	if err := in.l.step(ctx, "manifest"); err != nil {
		return err
	}
	path := in.l.path(incomingDir, manifestFile)
	return spaceError(atomicfile.Write(path, data, 0o600, atomicfile.Options{Sync: true}))
}

// place gives the snapshot its number. It does not count yet.
func (in *Incoming) place(ctx context.Context) error {
	if err := in.l.step(ctx, "rename"); err != nil {
		return err
	}
	if err := os.Rename(in.l.path(incomingDir), in.l.sequencePath(in.sequence)); err != nil {
		return spaceError(err)
	}
	err := in.l.at("sync")
	if err == nil {
		err = in.syncNames()
	}
	if err != nil {
		return errors.Join(err, in.l.takeBack(in.sequence))
	}
	return nil
}

// syncNames makes the new name survive a power failure, and the first time
// those of the workload and its namespace.
func (in *Incoming) syncNames() error {
	dirs := []string{in.l.dir}
	if in.parent == 0 {
		ns := filepath.Dir(in.l.dir)
		dirs = append(dirs, ns, filepath.Dir(ns))
	}
	for _, d := range dirs {
		if err := atomicfile.SyncDir(d); err != nil {
			return spaceError(err)
		}
	}
	return nil
}

// takeBack throws a numbered snapshot away that did not come to count.
func (l *Local) takeBack(seq uint64) error {
	if h, err := readHead(l.dir); err == nil && h.Sequence == seq {
		return nil // The old head could not be written: keep what it names.
	}
	defer l.emptyTrash()
	return l.throwAway(strconv.FormatUint(seq, 10))
}

// point makes head.json name the snapshot: the moment of the commit. When
// that fails half-way the old head is written again, so that this process
// and the disk agree.
func (l *Local) point(ctx context.Context, before Head, m Manifest) error {
	h := Head{
		State: Asleep, Sequence: m.Sequence, Epoch: m.Epoch, Time: m.Created,
		Namespace: m.Namespace, ID: m.ID, Identity: m.Identity, Lineage: m.Lineage, Containerd: cmp.Or(l.asks, before.Containerd),
	}
	if err := l.step(ctx, "head"); err != nil {
		return err
	}
	err := writeHead(l.dir, h)
	if err == nil {
		if err = l.at("headsync"); err == nil {
			return nil
		}
	}
	if now, rerr := readHead(l.dir); rerr == nil && now.Sequence == m.Sequence {
		return errors.Join(err, l.restoreHead(before))
	}
	return err
}

func (l *Local) restoreHead(before Head) error {
	if before.Time.IsZero() { // there was none
		return os.Remove(l.path(headFile))
	}
	return writeHead(l.dir, before)
}

// dropOthers throws away every other committed snapshot. A failure is not
// one of the commit; the next open repeats it.
func (l *Local) dropOthers(current uint64) {
	if l.at("drop") != nil {
		return
	}
	seqs, err := l.sequences()
	if err != nil {
		return
	}
	for _, seq := range seqs {
		if seq != current {
			_ = l.throwAway(strconv.FormatUint(seq, 10))
		}
	}
	l.emptyTrash()
}

func (l *Local) step(ctx context.Context, name string) error {
	if err := context.Cause(ctx); err != nil {
		return fmt.Errorf("before %s: %w", name, err)
	}
	return l.at(name)
}
