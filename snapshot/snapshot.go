package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
)

// Snapshot is a committed snapshot. It does not change.
type Snapshot struct {
	dir      string
	manifest Manifest
}

// ImageDir is the directory of runsc's files, for --image-path.
func (s *Snapshot) ImageDir() string { return filepath.Join(s.dir, imageDir) }

// Manifest returns what the manifest says. The caller leaves slices and maps
// as they are.
func (s *Snapshot) Manifest() Manifest { return s.manifest }

// Sequence is short for Manifest().Sequence.
func (s *Snapshot) Sequence() uint64 { return s.manifest.Sequence }

// Size is the sum of the sizes of runsc's files, in bytes.
func (s *Snapshot) Size() uint64 {
	var n uint64
	for _, f := range s.manifest.Files {
		n += uint64(f.Size)
	}
	return n
}

// Current returns the snapshot that head.json names, whatever the state is.
// Only its manifest is read; Verify reads the rest. Errors: ErrNone when there
// is none, or no head, or it is in quarantine; ErrCorrupt, ErrVersion.
func (l *Local) Current() (*Snapshot, error) { return currentIn(l.dir) }

func currentIn(dir string) (*Snapshot, error) {
	h, err := readHead(dir)
	if errors.Is(err, ErrNoHead) || err == nil && h.Sequence == 0 {
		return nil, fmt.Errorf("%s: %w", dir, ErrNone)
	}
	if err != nil {
		return nil, err
	}
	return loadFrom(dir, h.Sequence)
}

// Candidates returns what could be restored, best first: the current snapshot
// and then older ones that are still there. Those whose manifest can't be
// read are left out. Newer than head.json is never a candidate.
func (l *Local) Candidates() ([]*Snapshot, error) {
	h, err := readHead(l.dir)
	if errors.Is(err, ErrNoHead) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	seqs, err := l.sequences()
	if err != nil {
		return nil, err
	}
	var out []*Snapshot
	for _, seq := range seqs {
		if seq > h.Sequence {
			continue
		}
		if s, err := l.load(seq); err == nil {
			out = append(out, s)
		}
	}
	return out, nil
}

func (l *Local) load(seq uint64) (*Snapshot, error) { return loadFrom(l.dir, seq) }

func loadFrom(dir string, seq uint64) (*Snapshot, error) {
	name := (&Local{dir: dir}).sequencePath(seq)
	if _, err := os.Stat(name); errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w: snapshot %d is not there", dir, ErrNone, seq)
	}
	m, err := readManifest(name)
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, corrupt(manifestFile, "not there"))
	}
	if err != nil {
		return nil, err
	}
	if m.Sequence != seq {
		return nil, fmt.Errorf("%s: %w", name, corrupt(manifestFile, "it is of sequence %d", m.Sequence))
	}
	return &Snapshot{dir: name, manifest: m}, nil
}

func sortDescending(s []uint64) {
	slices.Sort(s)
	slices.Reverse(s)
}
