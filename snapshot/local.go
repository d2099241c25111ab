package snapshot

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

const (
	incomingDir   = "incoming"
	imageDir      = "image"
	quarantineDir = "quarantine"
	trashDir      = "trash"
	removedPrefix = ".removed-" // of a whole directory, beside it
)

// Local is one workload's directory in the local tier, owned by this process
// from OpenLocal to Close.
//
// Reading methods may be called at any time from any goroutine. Those that
// change the tier (SetState, Begin, Commit, Discard, Quarantine, Remove) are
// called one at a time.
type Local struct {
	dir   string
	lock  *os.File
	now   func() time.Time
	fault func(step string) error // nil but in tests
	owner Head                    // Namespace, ID, Identity for a new head
	asks  string                  // Containerd of each head that is written; "" leaves it
	epoch uint64                  // at least, of each head that is written; see Under
	above uint64                  // each new snapshot's sequence is above it

	cleaning sync.WaitGroup
}

// Option changes how OpenLocal opens.
type Option func(*Local)

// WithOwner puts names into the heads that SetState writes before the first
// commit, so that a directory can be told by its content.
func WithOwner(namespace, id, identity string) Option {
	return func(l *Local) { l.owner = Head{Namespace: namespace, ID: id, Identity: identity} }
}

// WithContainerd puts a socket into every head that is written.
func WithContainerd(address string) Option { return func(l *Local) { l.asks = address } }

// WithClock replaces time.Now.
func WithClock(now func() time.Time) Option { return func(l *Local) { l.now = now } }

// WithFault calls fault before each step that changes the disk; an error from
// it makes the step fail. For tests. The steps are "begin", "seal",
// "manifest", "rename", "sync", "head", "headsync" (head.json is replaced by
// then), "drop" of the snapshot before, and "state" of SetState.
func WithFault(fault func(step string) error) Option { return func(l *Local) { l.fault = fault } }

// OpenLocal opens dir, made by DirFor, for this process alone, and creates it
// (0700) when it is not there. It is ErrBusy while another process has it
// open. What an interrupted commit left is put right: afterwards the snapshot
// that head.json names is there, and nothing else. A head.json that can't be
// read is not an error here, but of [Local.Head]; nothing is removed then.
func OpenLocal(dir string, opts ...Option) (*Local, error) {
	l := &Local{dir: dir, now: time.Now}
	for _, o := range opts {
		o(l)
	}
	var err error
	if l.lock, err = acquire(dir); err != nil {
		return nil, fmt.Errorf("open local tier: %w", err)
	}
	if err := l.recover(); err != nil {
		return nil, errors.Join(fmt.Errorf("open local tier %s: %w", dir, err), l.lock.Close())
	}
	l.emptyTrash()
	return l, nil
}

// Dir returns the directory.
func (l *Local) Dir() string { return l.dir }

// Close waits until what was thrown away is deleted and gives up the
// ownership. Nothing else is lost by not calling it.
func (l *Local) Close() error {
	l.cleaning.Wait()
	return l.lock.Close()
}

// Head reads head.json: ErrNoHead, ErrVersion, ErrCorrupt.
func (l *Local) Head() (Head, error) { return readHead(l.dir) }

// SetState writes a new head.json with the same sequence. It has survived a
// power failure when it returns. Without a head it starts one; a head that
// can't be read is not overwritten. It needs no free space where there is a
// head: a full disk keeps no workload from waking.
func (l *Local) SetState(ctx context.Context, s State) error {
	return l.setState(ctx, s, func(*Head) {})
}

// SetRestored is SetState(Awake) of a workload that goes on from a snapshot
// which is not that of the head: an older one, or one from elsewhere. The next
// is counted above newest, the highest that anybody has seen. It stays of its
// lineage where the head was lost.
func (l *Local) SetRestored(ctx context.Context, m Manifest, newest uint64) error {
	return l.setState(ctx, Awake, func(h *Head) {
		h.Lineage = cmp.Or(m.Lineage, h.Lineage)
		if h.Sequence = max(h.Sequence, m.Sequence, newest); h.Sequence != m.Sequence {
			h.Restored = m.Sequence
		}
	})
}

func (l *Local) setState(ctx context.Context, s State, change func(*Head)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("set state %s: %w", s, err)
	}
	h, err := l.headOrNew()
	if err != nil {
		return fmt.Errorf("set state %s: %w", s, err)
	}
	h.State, h.Time, h.Restored = s, l.now().UTC(), 0
	change(&h)
	if _, err := checkHead(h); err != nil {
		return fmt.Errorf("set state %s: %w", s, err)
	}
	if err := l.at("state"); err != nil {
		return err
	}
	err = writeHead(l.dir, h)
	if errors.Is(err, ErrNoSpace) {
		err = overwriteHead(l.dir, h)
	}
	if err != nil {
		return fmt.Errorf("set state %s: %w", s, err)
	}
	return nil
}

// SetEpoch raises the epoch in head.json: ErrEpoch when it would fall.
func (l *Local) SetEpoch(ctx context.Context, epoch uint64) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("set epoch %d: %w", epoch, err)
	}
	h, err := l.headOrNew()
	if err != nil {
		return fmt.Errorf("set epoch %d: %w", epoch, err)
	}
	if epoch < h.Epoch {
		return fmt.Errorf("set epoch %d: %w: head has %d", epoch, ErrEpoch, h.Epoch)
	}
	h.Epoch, h.Time = epoch, l.now().UTC()
	if err := writeHead(l.dir, h); err != nil {
		return fmt.Errorf("set epoch %d: %w", epoch, err)
	}
	return nil
}

// Under has every head from here on be of an epoch, unless it is of a higher one, and new snapshots be counted above sequence: the highest
// that anybody has seen of a workload that ran elsewhere.
func (l *Local) Under(epoch, sequence uint64) {
	l.epoch, l.above = max(l.epoch, epoch), max(l.above, sequence)
}

func (l *Local) headOrNew() (Head, error) {
	h, err := readHead(l.dir)
	if errors.Is(err, ErrNoHead) {
		h, err = l.owner, nil
		h.State = Awake
	}
	if l.owner.Identity != "" { // its containers come and go
		h.Namespace, h.ID, h.Identity = l.owner.Namespace, l.owner.ID, l.owner.Identity
	}
	h.Epoch = max(h.Epoch, l.epoch)
	h.Containerd = cmp.Or(l.asks, h.Containerd)
	h.Lineage = cmp.Or(h.Lineage, newLineage())
	return h, err
}

func newLineage() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // never fails
	return hex.EncodeToString(id[:])
}

// Free returns the bytes that this process could still write to the file
// system of the tier.
func (l *Local) Free() (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(l.dir, &st); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", l.dir, err)
	}
	return st.Bavail * uint64(st.Bsize), nil
}

// Remove takes the directory away with everything in it, quarantine included:
// nothing of it can be found or restored when it returns. The deletion of
// what may be gigabytes follows in the background; Close waits for it. After
// Remove only Close may be called.
func (l *Local) Remove() error {
	parent := filepath.Dir(l.dir)
	gone := filepath.Join(parent, fmt.Sprintf("%s%s-%d", removedPrefix, filepath.Base(l.dir), l.now().UnixNano()))
	if err := os.Rename(l.dir, gone); err != nil {
		return fmt.Errorf("remove %s: %w", l.dir, err)
	}
	if err := atomicfile.SyncDir(parent); err != nil {
		return fmt.Errorf("remove %s: %w", l.dir, err)
	}
	l.emptyTrash()
	return nil
}

// RemoveUnused is Remove of a directory that holds nothing yet, as after an
// OpenLocal that made it. With anything in it, or after Remove, it does nothing.
func (l *Local) RemoveUnused() error {
	entries, err := os.ReadDir(l.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", l.dir, err)
	}
	if len(entries) != 1 || entries[0].Name() != lockFile {
		return nil
	}
	return l.Remove()
}

func (l *Local) path(name ...string) string {
	return filepath.Join(append([]string{l.dir}, name...)...)
}

func (l *Local) sequencePath(seq uint64) string { return l.path(strconv.FormatUint(seq, 10)) }

func (l *Local) at(step string) error {
	if l.fault == nil {
		return nil
	}
	if err := l.fault(step); err != nil {
		return fmt.Errorf("%s: %w", step, spaceError(err))
	}
	return nil
}
