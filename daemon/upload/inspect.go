package upload

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Copies says where the snapshots of a workload are.
type Copies struct {
	Name    string // in the store
	Local   uint64 // sequence of the one on the node; 0: none
	Durable uint64 // of the newest in the store; 0: none
	At      time.Time
	Since   time.Time // since when the store has been without the newest; zero: it has it
	Sending bool
	Sent    int64     // bytes of the one that is being uploaded
	Err     error     // of the last try
	Final   bool      // it is not tried again
	Delete  time.Time // when it is destroyed, being gone; zero: it is not
}

// Copies of a workload; ok is false when nothing of it was ever seen.
func (u *Uploader) Copies(key node.Key) (c Copies, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, l := range u.lineages {
		if l.record.Namespace == key.Namespace && l.record.ID == key.ID && l.record.Gone.IsZero() {
			return u.copiesLocked(l), true
		}
	}
	return Copies{}, false
}

func (u *Uploader) copiesLocked(l *lineage) Copies {
	c := Copies{
		Name: l.record.Name, Local: u.hereLocked(l), Durable: l.record.Sequence, At: l.record.Committed, Since: l.since,
		Sending: l.sending != 0, Sent: l.moved, Err: l.err, Final: l.final, Delete: l.deleteAt(),
	}
	if l.record.Removed != 0 && l.record.Removed == l.record.Sequence {
		c.Durable = l.record.Left
	}
	if l.record.Place != u.place {
		c.Durable, c.At = 0, time.Time{}
	}
	return c
}

// Stats are for metrics.
type Stats struct {
	Waiting, Running, Stuck int           // uploads; those that are not tried again
	Lag                     time.Duration // of the workload whose newest snapshot the store has been without for longest
	Condition               Condition
	Claimed                 int // workloads with an identity
}

// Stats as of now.
func (u *Uploader) Stats() Stats {
	s := Stats{Condition: u.Condition()}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, l := range u.lineages {
		if l.record.Identity != "" && l.record.claims() {
			s.Claimed++
		}
		if l.since.IsZero() {
			continue
		}
		s.Lag = max(s.Lag, time.Since(l.since))
		switch {
		case l.sending != 0:
			s.Running++
		case l.final:
			s.Stuck++
		default:
			s.Waiting++
		}
	}
	return s
}

// Listed is a lineage in the store.
type Listed struct {
	Name string
	Key  node.Key // empty: not of this node
	// Identity of the workload; "": it has none, or is not of this node.
	Identity string
	Gone     time.Time
	Copies
	Head durable.Head
	Err  error // why the head can't be read
}

// headsAtOnce bounds how many are read at a time.
const headsAtOnce = 8

// List reads the heads of all lineages in the store, by name, or of those that a person means by name.
func (u *Uploader) List(ctx context.Context, name string) ([]Listed, error) {
	names, err := u.resolve(ctx, name)
	if err != nil {
		return nil, err
	}
	all := make([]Listed, len(names))
	var g errgroup.Group
	g.SetLimit(headsAtOnce)
	for i, name := range names {
		g.Go(func() error {
			all[i] = u.listed(name)
			tier, err := u.handle(name, u.opts.Keep)
			if err == nil {
				all[i].Head, err = tier.Head(ctx)
			}
			all[i].Err = err
			return nil
		})
	}
	_ = g.Wait()
	return all, ctx.Err()
}

func (u *Uploader) listed(name string) Listed {
	u.mu.Lock()
	defer u.mu.Unlock()
	out := Listed{Name: name}
	if l := u.lineages[name]; l != nil {
		out.Key = node.Key{Namespace: l.record.Namespace, ID: l.record.ID}
		out.Identity, out.Gone, out.Copies = l.record.Identity, l.record.Gone, u.copiesLocked(l)
	}
	return out
}

// ErrUnknown: nothing in the store has that name.
var ErrUnknown = errors.New("nothing in the store has that name")

// resolve finds the lineages that a person means: all for "", else the one of that name, or those of the node's workload of that id.
func (u *Uploader) resolve(ctx context.Context, name string) ([]string, error) {
	tier, err := u.anyTier()
	if err != nil {
		return nil, err
	}
	names, err := tier.Names(ctx)
	if err != nil || name == "" {
		return names, err
	}
	of := u.ofWorkload(name)
	names = slices.DeleteFunc(names, func(n string) bool { return n != name && !slices.Contains(of, n) })
	if len(names) == 0 {
		return nil, fmt.Errorf("%q: %w: hibernatectl snapshots ls lists them", name, ErrUnknown)
	}
	return names, nil
}

func (u *Uploader) anyTier() (*durable.Tier, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.store == nil {
		return nil, u.notOpenLocked()
	}
	return u.tierLocked(u.opts.Keep)
}

// ofWorkload are the names of the node's lineages by a workload's ID, or NAMESPACE/ID.
func (u *Uploader) ofWorkload(name string) (names []string) {
	namespace, id, given := strings.Cut(name, "/")
	if !given {
		namespace, id = "", name
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, l := range u.lineages {
		if l.record.ID == id && (!given || l.record.Namespace == namespace) {
			names = append(names, l.record.Name)
		}
	}
	return names
}

// single is resolve for what takes one lineage.
func (u *Uploader) single(ctx context.Context, name string) (string, error) {
	names, err := u.resolve(ctx, name)
	if err != nil {
		return "", err
	}
	if len(names) > 1 {
		var there []string // what still has its container is meant first
		for _, n := range names {
			if u.listed(n).Gone.IsZero() && u.listed(n).Key.ID != "" {
				there = append(there, n)
			}
		}
		if len(there) != 1 {
			return "", fmt.Errorf("%q: %w more than once: name one of %s", name, errAmbiguous, strings.Join(names, ", "))
		}
		names = there
	}
	return names[0], nil
}

var errAmbiguous = errors.New("it is in the store")

// Verify reads a generation back, 0 being the newest, and compares all of it. It says which it was.
func (u *Uploader) Verify(ctx context.Context, name string, sequence uint64, tell func(durable.Progress)) (found string, g durable.Generation, err error) {
	if found, err = u.single(ctx, name); err != nil {
		return "", g, err
	}
	tier, err := u.handle(found, u.opts.Keep)
	if err != nil {
		return found, g, err
	}
	r, err := tier.Open(ctx, sequence, durable.OpenOptions{Lease: true})
	if err != nil {
		return found, g, err
	}
	defer r.Close()
	return found, r.Generation(), r.Verify(ctx, tell)
}

// Collected is what a collection of a lineage has deleted, or would.
type Collected struct {
	Name string
	durable.Collection
	Err error
}

// Collect collects the garbage of all lineages, or of those that a person means by name, and calls tell after each. What tell
// returns ends it.
func (u *Uploader) Collect(ctx context.Context, name string, dryRun bool, tell func(Collected) error) error {
	names, err := u.resolve(ctx, name)
	if err != nil {
		return err
	}
	for _, name := range names {
		c := Collected{Name: name}
		var tier *durable.Lineage
		if tier, c.Err = u.handle(name, u.keepOf(name)); c.Err == nil {
			c.Collection, c.Err = tier.Collect(ctx, durable.CollectOptions{DryRun: dryRun})
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if !dryRun {
			u.opts.Meter.Collected(len(c.Deleted), c.Bytes())
		}
		if err := tell(c); err != nil {
			return err
		}
	}
	return nil
}

// keepOf another node's lineage is as many as there can be: how many it keeps is for that node to say.
func (u *Uploader) keepOf(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	if l := u.lineages[name]; l != nil {
		return u.keepLocked(l)
	}
	return keepAll
}

const keepAll = 256

// collect is the collection of a lineage of this node, when it is due.
func (u *Uploader) collect(ctx context.Context, l *lineage) {
	u.mu.Lock()
	name, keep := l.record.Name, u.keepLocked(l)
	l.collectAt = time.Time{} // who asks from now on asks for another one
	u.mu.Unlock()
	tier, err := u.handle(name, keep)
	var c durable.Collection
	if err == nil {
		c, err = tier.Collect(ctx, durable.CollectOptions{})
	}
	if ctx.Err() != nil {
		return
	}
	u.opts.Meter.Collected(len(c.Deleted), c.Bytes())
	if err != nil && !errors.Is(err, durable.ErrNone) {
		u.opts.Log.Warn("garbage in the store was not collected: it is tried again", "name", name, "error", err)
	} else if len(c.Dropped)+len(c.Deleted) > 0 {
		u.opts.Log.Info("garbage in the store was collected", "name", name, "generations", len(c.Dropped), "objects", len(c.Deleted), "bytes", c.Bytes())
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !l.record.Destroyed.IsZero() && err == nil && c.Listed == len(c.Deleted) {
		u.forgetLocked(l)
		return
	}
	later := time.Now().Add(u.opts.Grace + time.Minute)
	again := !l.record.Destroyed.IsZero() || err != nil && !errors.Is(err, durable.ErrNone) || len(c.Dropped)+len(c.Deleted) > 0 // what was only dropped is deleted then
	if again && (l.collectAt.IsZero() || later.Before(l.collectAt)) {
		l.collectAt = later
	}
}
