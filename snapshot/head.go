package snapshot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// State is what the workload was doing when head.json was last written. It is
// what decides, after a crash, whether the snapshot may be restored.
type State string

// The states of a workload on disk.
const (
	// Asleep: the current snapshot is the workload.
	Asleep State = "asleep"
	// Awake: the workload runs, or ran until a crash; its snapshot is old.
	Awake State = "awake"
	// Ended: it exited or was deleted; nothing is to be restored.
	Ended State = "ended"
)

func (s State) valid() bool { return s == Asleep || s == Awake || s == Ended }

// HeadVersion is the newest version of head.json that this package writes.
const HeadVersion = 1

const (
	headFile   = "head.json"
	headFormat = "hibernate.head"
)

// Head is the content of head.json: small, and replaced by rename.
type Head struct {
	Version  int       `json:"-"`        // of the document; HeadVersion when written
	State    State     `json:"state"`    //
	Sequence uint64    `json:"sequence"` // of the last committed snapshot; 0: none yet
	Epoch    uint64    `json:"epoch"`    // 0 without a durable tier
	Time     time.Time `json:"time"`     // of this write, UTC
	// Owner of the directory, whose name is only a hash.
	Namespace string `json:"namespace,omitempty"`
	ID        string `json:"id,omitempty"`
	Identity  string `json:"identity,omitempty"`
	// Lineage is a random id of the chain of snapshots in this directory, made
	// with its first head: another directory of the same name has another one.
	// "" in heads of earlier versions.
	Lineage string `json:"lineage,omitempty"`
	// Containerd is the socket of the containerd that runs it: whom to ask
	// whether the container still exists.
	Containerd string `json:"containerd,omitempty"`
	// Restored is the snapshot that the workload went on from when that was
	// not the one of Sequence. 0: it was. A commit ends it.
	Restored uint64 `json:"restored,omitempty"`
	// Generations lists older committed sequences that are kept, newest
	// first. Reserved: version 1 of the local tier keeps none.
	Generations []uint64 `json:"generations,omitempty"`
}

func parseHead(data []byte) (Head, error) {
	var h Head
	if err := decodeDocument(data, headFile, headFormat, HeadVersion, &h); err != nil {
		return Head{}, err
	}
	return checkHead(h)
}

func checkHead(h Head) (Head, error) {
	if !h.State.valid() {
		return Head{}, corrupt(headFile, "state is %q", h.State)
	}
	if h.State == Asleep && h.Sequence == 0 {
		return Head{}, corrupt(headFile, "asleep without a snapshot")
	}
	h.Version = HeadVersion
	return h, nil
}

// ReadHead reads head.json of dir without owning it: ErrNoHead, ErrVersion,
// ErrCorrupt.
func ReadHead(dir string) (Head, error) { return readHead(dir) }

// readHead returns ErrNoHead, ErrVersion or ErrCorrupt where they apply.
func readHead(dir string) (Head, error) {
	var h Head
	err := readDocument(filepath.Join(dir, headFile), headFile, headFormat, HeadVersion, &h)
	if errors.Is(err, os.ErrNotExist) {
		return Head{}, fmt.Errorf("%s: %w", dir, ErrNoHead)
	}
	if err != nil {
		return Head{}, fmt.Errorf("%s: %w", dir, err)
	}
	if h, err = checkHead(h); err != nil {
		return Head{}, fmt.Errorf("%s: %w", dir, err)
	}
	return h, nil
}

// writeHead replaces head.json and makes it survive a power failure.
func writeHead(dir string, h Head) error {
	data, err := encodeDocument(headFormat, HeadVersion, h)
	if err != nil {
		return err
	}
	return spaceError(atomicfile.Write(filepath.Join(dir, headFile), data, 0o600, atomicfile.Options{Sync: true}))
}

// overwriteHead writes over head.json in the blocks that it has. A power
// failure in between may leave neither the old nor the new one: ErrCorrupt.
func overwriteHead(dir string, h Head) error {
	data, err := encodeDocument(headFormat, HeadVersion, h)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, headFile), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("write over %s: %w", headFile, err)
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		err = f.Truncate(int64(len(data)))
	}
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write over %s: %w", headFile, spaceError(err))
	}
	return nil
}
