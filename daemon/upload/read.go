package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/daemon/pages"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

var _ pages.Store = (*Uploader)(nil)

// Dir is where this node's own notes about the store are.
func (u *Uploader) Dir() string { return Dir(u.opts.DataDir) }

// Dir is that of a data directory.
func Dir(dataDir string) string { return filepath.Join(dataDir, recordsDir) }

// hereLocked is the sequence of the snapshot that the node has now; 0: none. A head may name one that is gone, or set aside.
func (u *Uploader) hereLocked(l *lineage) uint64 {
	if _, err := os.Stat(filepath.Join(u.dirOf(l.record), strconv.FormatUint(l.local, 10), "manifest.json")); err != nil {
		return 0
	}
	return l.local
}

// nameFor is the name in the store of a workload of this node.
func (u *Uploader) nameFor(w api.Workload) string {
	dir := snapshot.DirFor(u.opts.DataDir, w.Namespace, w.ID, w.Identity)
	return nameOf(dir, snapshot.Head{Identity: w.Identity, Lineage: w.Lineage})
}

// own is what is known of a lineage: the name alone when nothing is, and nothing of another store.
func (u *Uploader) own(w api.Workload) record {
	name := u.nameFor(w)
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.lineages[name]; l != nil && l.record.Place == u.place {
		return l.record
	}
	return record{Name: name}
}

// Known implements pages.Store.
func (u *Uploader) Known(w api.Workload) (pages.Known, error) {
	r := u.own(w)
	return pages.Known{Name: r.Name, Sequence: r.Sequence, Epoch: r.Epoch}, nil
}

// Open implements pages.Store: it opens a generation of a workload of this node. durable.ErrOwned when another node has claimed it.
func (u *Uploader) Open(ctx context.Context, w api.Workload, sequence uint64) (pages.Snapshot, error) {
	r, tier, err := u.reading(w)
	if err != nil {
		return nil, err
	}
	tier.Remember(r.Epoch, r.Sequence)
	head, err := tier.Head(ctx)
	if err != nil {
		return nil, err
	}
	if err := u.mayRun(w, r, head); err != nil {
		return nil, err
	}
	reader, err := tier.Open(ctx, sequence, durable.OpenOptions{Lease: true})
	if err != nil {
		return nil, &pages.OpenError{Generations: head.Generations, Err: err}
	}
	return opened{reader, r.Name, head.Generations}, nil
}

// reading is a lineage to read from: the one that uploads go through, where there is one, since that has its key already.
func (u *Uploader) reading(w api.Workload) (r record, tier *durable.Lineage, err error) {
	r = u.own(w)
	u.mu.Lock()
	if l := u.lineages[r.Name]; l != nil && l.claimed && u.store != nil {
		tier = l.tier
	}
	u.mu.Unlock()
	if tier == nil {
		tier, err = u.handle(r.Name, u.opts.Keep)
	}
	return r, tier, err
}

// mayRun refuses what another node has claimed. No other directory has a lineage of a random id, whoever's claim it is.
func (u *Uploader) mayRun(w api.Workload, r record, head durable.Head) error {
	o := head.Owner
	if o == nil || r.Claim != "" && o.Claim == r.Claim || o.Node == u.opts.Node && w.Lineage != "" && w.Identity == "" {
		return nil
	}
	return &durable.OwnedError{Name: r.Name, Owner: *o, Epoch: head.Epoch}
}

// Keep implements pages.Store: it pins a generation of a workload of this node.
func (u *Uploader) Keep(ctx context.Context, w api.Workload, sequence uint64) error {
	tier, err := u.handle(u.nameFor(w), u.opts.Keep)
	if err != nil {
		return err
	}
	if err := tier.Pin(ctx, sequence, true); err != nil && !errors.Is(err, durable.ErrNone) {
		return fmt.Errorf("keep snapshot %d: %w", sequence, err)
	}
	return nil
}

// opened implements pages.Snapshot.
type opened struct {
	*durable.Reader
	name        string
	generations []durable.Generation
}

func (o opened) Name() string                      { return o.name }
func (o opened) Generations() []durable.Generation { return o.generations }

func (o opened) File(name string) (pages.File, error) {
	f, err := o.Reader.File(name)
	if err != nil {
		return nil, err
	}
	return f, nil
}
