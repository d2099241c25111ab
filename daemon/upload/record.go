package upload

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// recordsDir is below the data directory. No namespace has that name.
const recordsDir = ".durable"

const recordVersion = 1

// record is what is known of a lineage in the store, on the disk.
type record struct {
	Version   int    `json:"version"`
	Name      string `json:"name"`  // in the store
	Place     string `json:"place"` // which store; see place
	Dir       string `json:"dir"`   // below the data directory
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	Identity  string `json:"identity,omitempty"`
	Lineage   string `json:"lineage,omitempty"` // of the local head

	// Claiming: a claim was begun, and what came of it was not written down any more.
	Claiming bool   `json:"claiming,omitempty"`
	Claim    string `json:"claim,omitempty"`
	Epoch    uint64 `json:"epoch,omitempty"`

	// Of a lineage with an identity.
	Term        string  `json:"term,omitempty"`        // in which the claim was made or confirmed last
	Since       uint64  `json:"since,omitempty"`       // the epoch since which nobody else has claimed; 0: nobody else ever has
	Releasing   bool    `json:"releasing,omitempty"`   // a release was begun, and what came of it was not written down any more
	Released    bool    `json:"released,omitempty"`    // the claim is over by this node's own will
	Unconfirmed bool    `json:"unconfirmed,omitempty"` // it may run by fencing = relaxed, and the store was not asked
	Overtaken   string  `json:"overtaken,omitempty"`   // why copies that run here are to be ended
	Has         []Has   `json:"has,omitempty"`         // generations in the store, as of the last look
	Answer      *answer `json:"answer,omitempty"`

	// Of the peer path.
	Received *received `json:"received,omitempty"` // what another node has sent
	Yielded  *yielded  `json:"yielded,omitempty"`  // the claim was given to another node, if that has taken it
	Handed   uint64    `json:"handed,omitempty"`   // the newest snapshot that went to another node so, which uploads it

	// The newest that was committed; 0: none.
	Sequence  uint64    `json:"sequence"`
	Committed time.Time `json:"committed,omitzero"`
	Image     int64     `json:"image,omitempty"` // bytes of its files
	Sent      int64     `json:"sent,omitempty"`  // bytes that were sent for it

	Keep        int           `json:"keep,omitempty"` // generations; 0: the node's
	DeleteAfter time.Duration `json:"delete-after,omitempty"`
	Gone        time.Time     `json:"gone,omitzero"` // since when nothing of it is left on the node

	// Expired: it was ended since nobody had wanted it, and its snapshots go.
	Expired bool `json:"expired,omitempty"`
	// A person has removed Removed, when it was the newest; Left is the newest that was there then.
	Removed uint64 `json:"removed,omitempty"`
	Left    uint64 `json:"left,omitempty"`
	// Destroyed: the lineage is; what is left of its objects is still to be collected.
	Destroyed time.Time `json:"destroyed,omitzero"`
}

// answer is what was found out when a claim was made. It counts until something has run.
type answer struct {
	Was    string `json:"was"` // the local head
	Former string `json:"former,omitempty"`
	Whole  bool   `json:"whole,omitempty"`
}

// nameOf is a lineage's name in the store.
func nameOf(dir string, head snapshot.Head) string {
	name := filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir)
	if head.Identity == "" && head.Lineage != "" {
		name += "." + head.Lineage
	}
	return name
}

func (u *Uploader) recordPath(name string) string {
	return filepath.Join(u.opts.DataDir, recordsDir, strings.ReplaceAll(name, "/", "+")+".json")
}

// save writes a record so that it outlives a power failure.
func (u *Uploader) save(r record) error {
	r.Version = recordVersion
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(u.opts.DataDir, recordsDir), 0o700); err != nil {
		return fmt.Errorf("note what is in the store: %w", err)
	}
	if err := atomicfile.Write(u.recordPath(r.Name), append(data, '\n'), 0o600, atomicfile.Options{Sync: true}); err != nil {
		return fmt.Errorf("note what is in the store: %w", err)
	}
	return nil
}

// saveNow saves a lineage's record as it is. A failure is told, and loses nothing that the head in the store doesn't have.
func (u *Uploader) saveNow(name string) {
	u.saving.Lock()
	defer u.saving.Unlock()
	u.mu.Lock()
	r := u.lineages[name].record
	u.mu.Unlock()
	if err := u.save(r); err != nil {
		u.opts.Log.Warn("a record was not written", "error", err)
	}
}

// forgetLocked forgets a lineage of which nothing is left anywhere.
func (u *Uploader) forgetLocked(l *lineage) {
	delete(u.lineages, l.record.Name)
	if l.record.Identity != "" {
		_ = os.Remove(u.grantPath(l.record.Name))
	}
	if err := os.Remove(u.recordPath(l.record.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		u.opts.Log.Warn("a record was not removed", "error", err)
	}
}

// load reads all records. One that can't be read is told, and its lineage is claimed anew, which its owner's name allows.
func (u *Uploader) load() []record {
	dir := filepath.Join(u.opts.DataDir, recordsDir)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		u.opts.Log.Warn("what is in the store is not known from before", "error", err)
	}
	var all []record
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if filepath.Ext(path) != ".json" || !e.Type().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		r, err := readRecord(path)
		if err != nil {
			u.opts.Log.Warn("a record of what is in the store can't be read", "file", path, "error", err)
			continue
		}
		all = append(all, r)
	}
	return all
}

func readRecord(path string) (r record, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, err
	}
	if r.Version != recordVersion || r.Name == "" {
		return r, fmt.Errorf("version %d, this program knows %d", r.Version, recordVersion)
	}
	return r, nil
}
