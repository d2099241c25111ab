package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

const (
	reasonFormat  = "hibernate.quarantine"
	reasonVersion = 1
	// quarantineTime sorts, and is safe in a file name.
	quarantineTime = "20060102T150405.000000000Z"
)

// Quarantined is a snapshot that must not be restored, kept for a person.
type Quarantined struct {
	Dir      string    `json:"-"`
	Sequence uint64    `json:"sequence"` // 0: a head.json
	Time     time.Time `json:"time"`
	Reason   string    `json:"reason"`
}

// Quarantine moves s to quarantine/<sequence>-<time> with the reason beside
// it, in quarantine/<sequence>-<time>.json. It is never restored, nor
// overwritten; its number is not used again. head.json stays as it is, so
// Current is ErrNone from here on.
func (l *Local) Quarantine(s *Snapshot, reason string) error {
	return l.quarantine(filepath.Base(s.dir), s.Sequence(), reason)
}

// QuarantineSequence is Quarantine for a snapshot whose manifest can't be
// read.
func (l *Local) QuarantineSequence(seq uint64, reason string) error {
	return l.quarantine(strconv.FormatUint(seq, 10), seq, reason)
}

// QuarantineHead moves a head.json that is ErrCorrupt aside and starts a new
// one, above all sequences that are there, in the state Awake: nobody knows
// whether its snapshot was still good, so it is not restored unasked.
func (l *Local) QuarantineHead(reason string) error {
	next, err := l.nextSequence(Head{})
	if err != nil {
		return err
	}
	if err := l.quarantine(headFile, 0, reason); err != nil {
		return err
	}
	h := l.owner
	h.State, h.Sequence, h.Time, h.Containerd, h.Lineage = Awake, next-1, l.now().UTC(), l.asks, newLineage()
	return writeHead(l.dir, h)
}

func (l *Local) quarantine(name string, seq uint64, reason string) error {
	wrap := func(err error) error {
		return fmt.Errorf("quarantine %s: %w", name, spaceError(err))
	}
	now := l.now().UTC()
	if err := os.Mkdir(l.path(quarantineDir), 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return wrap(err)
	}
	target := l.path(quarantineDir, strings.TrimSuffix(name, ".json")+"-"+now.Format(quarantineTime))
	// The move comes first: a full disk must not keep a bad snapshot in use.
	if err := os.Rename(l.path(name), target); err != nil {
		return wrap(err)
	}
	if err := atomicfile.SyncDir(l.dir); err != nil {
		return wrap(err)
	}
	data, err := encodeDocument(reasonFormat, reasonVersion, Quarantined{Sequence: seq, Time: now, Reason: reason})
	if err != nil {
		return wrap(err)
	}
	if err := atomicfile.Write(target+".json", data, 0o600, atomicfile.Options{Sync: true}); err != nil {
		return wrap(err)
	}
	return nil
}

// Quarantined lists what is in quarantine, oldest first. A reason that can't
// be read is left empty.
func (l *Local) Quarantined() ([]Quarantined, error) { return quarantinedIn(l.dir) }

func quarantinedIn(dir string) ([]Quarantined, error) {
	entries, err := os.ReadDir(filepath.Join(dir, quarantineDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list quarantine: %w", err)
	}
	var out []Quarantined
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "-")
		seq, ok := parseSequence(number)
		if strings.HasSuffix(e.Name(), ".json") || !ok && number != "head" {
			continue
		}
		q := Quarantined{Dir: filepath.Join(dir, quarantineDir, e.Name())}
		_ = readDocument(q.Dir+".json", e.Name(), reasonFormat, reasonVersion, &q)
		q.Sequence = seq
		out = append(out, q)
	}
	return out, nil
}

// PurgeBefore purges what was set aside before t, by the time in its name, and
// returns it. What failed, if anything, is left and told.
func (l *Local) PurgeBefore(t time.Time) (gone []Quarantined, err error) {
	all, err := l.Quarantined()
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, q := range all {
		_, stamp, _ := strings.Cut(filepath.Base(q.Dir), "-")
		at, perr := time.Parse(quarantineTime, stamp)
		if perr != nil || !at.Before(t) {
			continue
		}
		if err := l.Purge(q); err != nil {
			failed = append(failed, err)
			continue
		}
		gone = append(gone, q)
	}
	return gone, errors.Join(failed...)
}

// Purge deletes a quarantined snapshot and its reason, because a person or
// the workload's delete-after says so.
func (l *Local) Purge(q Quarantined) error {
	if filepath.Dir(q.Dir) != l.path(quarantineDir) {
		return fmt.Errorf("purge %s: not in quarantine of %s", q.Dir, l.dir)
	}
	if err := errors.Join(os.RemoveAll(q.Dir), os.RemoveAll(q.Dir+".json")); err != nil {
		return fmt.Errorf("purge %s: %w", q.Dir, err)
	}
	return nil
}
