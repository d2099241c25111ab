package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Found is what an earlier process left about a workload.
type Found struct {
	// Head is the zero Head when there was none.
	Head Head
	// Snapshot is what the workload may be restored from: set only when it
	// was asleep and its manifest can be read.
	Snapshot *Snapshot
	// Kept is a snapshot that is there but must not be restored unasked: the
	// workload has run on since, or has ended.
	Kept *Snapshot
	// Problem says why Snapshot is nil although the head says asleep, or why
	// the head can't be read: ErrCorrupt, ErrVersion, ErrNone.
	Problem error
}

// Adopt tells what an earlier process left here, after its crash or the
// node's. What was asleep may be restored; what was awake is gone.
func (l *Local) Adopt() (Found, error) { return inspect(l.dir) }

// inspectTries bounds how often a commit may overtake Inspect.
const inspectTries = 3

// Inspect is Adopt without owning the directory: it reads what another
// process writes, and may find a state that is over when it returns. It
// changes nothing. ErrNoHead when dir is not there.
func Inspect(dir string) (Found, error) {
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return Found{}, fmt.Errorf("%s: %w", dir, ErrNoHead)
	}
	f, err := inspect(dir)
	for range inspectTries {
		now, herr := readHead(dir)
		if f.Problem == nil || herr != nil || now.Sequence == f.Head.Sequence {
			break
		}
		f, err = inspect(dir) // A commit came between head and snapshot.
	}
	return f, err
}

func inspect(dir string) (Found, error) {
	h, err := readHead(dir)
	if errors.Is(err, ErrNoHead) {
		return Found{}, nil
	}
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrVersion) {
		return Found{Problem: err}, nil
	}
	if err != nil {
		return Found{}, err
	}
	f := Found{Head: h}
	s, err := currentIn(dir)
	switch {
	case err != nil && h.State == Asleep:
		f.Problem = err
	case err != nil:
	case h.State == Asleep:
		f.Snapshot = s
	default:
		f.Kept = s
	}
	return f, nil
}

// List returns the directories of all workloads below dataDir that have a
// head.json.
func List(dataDir string) ([]string, error) {
	namespaces, err := os.ReadDir(dataDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dataDir, err)
	}
	var out []string
	for _, ns := range namespaces {
		for _, dir := range entriesOf(filepath.Join(dataDir, ns.Name()), "") {
			if _, err := os.Lstat(filepath.Join(dir, headFile)); err == nil && !strings.HasPrefix(filepath.Base(dir), removedPrefix) {
				out = append(out, dir)
			}
		}
	}
	return out, nil
}

// Rejected is a snapshot that Choose put into quarantine.
type Rejected struct {
	Sequence uint64
	Err      error // ErrCorrupt
}

// Choose returns the best snapshot that is intact, having read all of it.
// One that is ErrCorrupt is put into quarantine, told in rejected, and the
// next older one tried. ErrNone when none is left. Any other error of a
// snapshot (an unreadable disk, a newer version, ctx) ends the search and
// leaves everything in place: it does not prove the snapshot bad.
func (l *Local) Choose(ctx context.Context) (s *Snapshot, rejected []Rejected, err error) {
	for {
		s, seq, err := l.best()
		if err == nil {
			err = s.Verify(ctx)
		}
		if err == nil || !errors.Is(err, ErrCorrupt) || seq == 0 {
			return s.orNil(err), rejected, err
		}
		rejected = append(rejected, Rejected{Sequence: seq, Err: err})
		if qerr := l.QuarantineSequence(seq, err.Error()); qerr != nil {
			return nil, rejected, qerr
		}
	}
}

func (s *Snapshot) orNil(err error) *Snapshot {
	if err != nil {
		return nil
	}
	return s
}

// best returns the highest snapshot that head.json allows, with its number
// also when its manifest can't be read.
func (l *Local) best() (*Snapshot, uint64, error) {
	h, err := readHead(l.dir)
	if errors.Is(err, ErrNoHead) {
		return nil, 0, fmt.Errorf("%s: %w", l.dir, ErrNone)
	}
	if err != nil {
		return nil, 0, err
	}
	seqs, err := l.sequences()
	if err != nil {
		return nil, 0, err
	}
	for _, seq := range seqs {
		if seq <= h.Sequence {
			s, err := l.load(seq)
			return s, seq, err
		}
	}
	return nil, 0, fmt.Errorf("%s: %w", l.dir, ErrNone)
}
