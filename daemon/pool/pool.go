// Package pool keeps a template's children ready: containers that begin from its snapshot, up to the moment before their start. What is left to
// be done when one is wanted is the restore.
//
// Vocabulary:
//
//   - member: such a container, made by "hibernatectl pool fill", with its sandbox booted, its network, and links to the template's files.
//   - ready: a member that nobody has claimed. Each has a file in the pool's directory below the run directory, which a reboot empties as it
//     does the members' tasks.
//   - claim: the file's new name. Renaming it succeeds for one claimant, however many try.
//
// The daemon links no client of containerd: it runs hibernatectl to fill and to empty.
package pool

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// Member of a pool.
type Member struct {
	Namespace  string    `json:"namespace"`
	ID         string    `json:"id"`
	Template   string    `json:"template"`   // its identity
	Sequence   uint64    `json:"sequence"`   // of the template's snapshot
	Containerd string    `json:"containerd"` // socket
	Made       time.Time `json:"made"`
}

// Pool is one template's. Dir needn't be there.
type Pool struct{ Dir string }

const (
	ready   = ".ready"
	claimed = ".claimed"
)

// ErrEmpty: nobody is ready.
var ErrEmpty = errors.New("no child is ready")

func top(runDir string) string { return filepath.Join(runDir, "pools") }

// Of is the pool of the template that has an identity in containerd's namespace.
func Of(runDir, namespace, identity string) Pool {
	sum := sha256.Sum256([]byte(namespace + "\x00" + identity))
	return Pool{filepath.Join(top(runDir), hex.EncodeToString(sum[:16]))}
}

// All pools that have a directory.
func All(runDir string) (all []Pool, err error) {
	dirs, err := filepath.Glob(filepath.Join(top(runDir), "*"))
	for _, dir := range dirs {
		all = append(all, Pool{dir})
	}
	return all, err
}

// Put makes a member ready.
func (p Pool) Put(m Member) error {
	data, err := json.Marshal(m)
	if err == nil {
		err = os.MkdirAll(p.Dir, 0o700)
	}
	if err == nil {
		err = atomicfile.Write(p.file(m.ID), data, 0o600, atomicfile.Options{})
	}
	if err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	return nil
}

func (p Pool) file(id string) string { return filepath.Join(p.Dir, id+ready) }

// Ready lists who is, the oldest first.
func (p Pool) Ready() ([]Member, error) {
	files, err := filepath.Glob(filepath.Join(p.Dir, "*"+ready))
	if err != nil {
		return nil, fmt.Errorf("pool: %w", err)
	}
	var all []Member
	for _, file := range files {
		var m Member
		data, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) { // claimed meanwhile
			continue
		}
		if err == nil {
			err = json.Unmarshal(data, &m)
		}
		if err != nil {
			return nil, fmt.Errorf("pool: %s: %w", file, err)
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Member) int { return cmp.Or(a.Made.Compare(b.Made), strings.Compare(a.ID, b.ID)) })
	return all, nil
}

// Take claims one that is ready: ErrEmpty. It is the caller's alone, who calls Drop when the container is started, or gone.
func (p Pool) Take() (Member, error) {
	for {
		all, err := p.Ready()
		if err != nil {
			return Member{}, err
		}
		if len(all) == 0 {
			return Member{}, ErrEmpty
		}
		for _, m := range all {
			if mine, err := p.TakeOne(m); mine || err != nil {
				return m, err
			}
		}
	}
}

// TakeOne claims this one, unless another has.
func (p Pool) TakeOne(m Member) (mine bool, err error) {
	now := time.Now()
	switch err := os.Rename(p.file(m.ID), filepath.Join(p.Dir, m.ID+claimed)); {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("pool: %w", err)
	}
	_ = os.Chtimes(filepath.Join(p.Dir, m.ID+claimed), now, now) // since when it is claimed
	return true, nil
}

// Drop forgets a member that was claimed.
func (p Pool) Drop(m Member) error {
	if err := os.Remove(filepath.Join(p.Dir, m.ID+claimed)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("pool: %w", err)
	}
	return nil
}

// claimLasts is how long a claimant may take to start its member. One that died before that has left it to who fills the pool.
const claimLasts = 2 * time.Minute

// Known says whether a member is ready, or was claimed a moment ago.
func (p Pool) Known(id string) bool {
	if _, err := os.Lstat(p.file(id)); err == nil {
		return true
	}
	st, err := os.Lstat(filepath.Join(p.Dir, id+claimed))
	return err == nil && time.Since(st.ModTime()) < claimLasts
}

// Remove the directory of a pool in which nobody is left.
func (p Pool) Remove() error {
	if err := os.RemoveAll(p.Dir); err != nil {
		return fmt.Errorf("pool: %w", err)
	}
	return nil
}
