package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// CollectOptions of Collect.
type CollectOptions struct {
	DryRun bool // change nothing, and tell what would go
}

// Collection is what Collect has done, or would.
type Collection struct {
	Dropped []uint64 // sequences of generations
	Deleted []Garbage
	Unknown []string // objects that are none of this format: left alone
	Listed  int      // objects that are there
}

// Garbage is an object that nothing names.
type Garbage struct {
	Name     string // below the lineage's data
	Size     int64
	Modified time.Time
}

// Bytes that were freed.
func (c Collection) Bytes() (n int64) {
	for _, g := range c.Deleted {
		n += g.Size
	}
	return n
}

// keepLists is how long a list stays in the head: longer than any operation lasts. A writer that finds one gone uploads
// all of its own objects again.
const keepLists = 24 * time.Hour

// Collect deletes what nothing needs: generations but the newest Config.Generations and those that are pinned, restored
// or read under a lease; and objects older than Config.Grace that nothing names. It is safe beside any other operation and
// other collectors, and may be killed anywhere. With any error before, it deletes nothing; one while it deletes leaves the rest
// to the next run. ErrInconsistent, ErrContended, those of Head and of reading any manifest that is needed.
func (l *Lineage) Collect(ctx context.Context, o CollectOptions) (Collection, error) {
	c := &collect{l: l, o: o, manifests: make(map[string]*manifest)}
	for try := range maxTries {
		if try > 0 {
			if err := l.t.backoff(ctx, try); err != nil {
				return c.out, err
			}
		}
		again, err := c.run(ctx)
		if err != nil {
			return c.out, fmt.Errorf("collect garbage of %s: %w", l.name, err)
		}
		if !again {
			return c.out, nil
		}
	}
	return c.out, fmt.Errorf("collect garbage of %s: %w", l.name, ErrContended)
}

// collect is one call of Collect.
type collect struct {
	l         *Lineage
	o         CollectOptions
	manifests map[string]*manifest
	out       Collection
}

// view is what a collection decides on: a head, and what was there at some time after that was read.
type view struct {
	head    Head
	version store.Version
	now     time.Time // by the store
	objects []store.Info
	readers map[string]*leaseBody // of live leases, by operation
	alive   map[operation]bool    // that have a live lease
}

// run is one attempt; again: the head was changed by somebody else.
func (c *collect) run(ctx context.Context) (again bool, err error) {
	v, err := c.look(ctx)
	if err != nil {
		return false, err
	}
	c.out.Listed = len(v.objects)
	keep, again, err := c.dropGenerations(ctx, v)
	if again || err != nil {
		return again, err
	}
	if c.o.DryRun {
		v.head.Generations = keep
	} else if len(keep) < len(v.head.Generations) {
		if v, err = c.look(ctx); err != nil { // a later listing than the change
			return false, err
		}
	}
	needed, err := c.needed(ctx, v)
	if err != nil {
		// Another collector may have dropped the generation, and deleted what it had.
		if now, _, herr := c.l.read(ctx); herr == nil && now.Revision != v.head.Revision {
			return true, nil
		}
		return false, err
	}
	condemned, lists, err := c.condemned(ctx, v, needed)
	if err != nil {
		return false, err
	}
	borrowed, err := c.borrowed(ctx, v)
	if err != nil {
		return false, err
	}
	left, garbage, plain := c.sort(v, needed, borrowed, condemned)
	if garbage, err = c.lookTwice(ctx, v, garbage); err != nil {
		return false, err
	}
	if c.o.DryRun {
		c.out.Deleted = slices.Concat(left, garbage, plain)
		return false, nil
	}
	if err := c.delete(ctx, left); err != nil {
		return false, err
	}
	if len(garbage) > 0 || len(lists) < len(v.head.Condemned) {
		if again, err := c.condemn(ctx, v, lists, garbage); again || err != nil {
			return again, err
		}
		if err := c.delete(ctx, garbage); err != nil {
			return false, err
		}
	}
	return false, c.delete(ctx, plain)
}

// look reads the head, and then lists everything.
func (c *collect) look(ctx context.Context) (v view, err error) {
	if v.head, v.version, err = c.l.read(ctx); err != nil {
		return v, err
	}
	prefix := c.l.data("")
	if v.objects, v.now, err = c.l.t.cfg.Store.List(ctx, prefix); err != nil {
		return v, fmt.Errorf("nothing was deleted: %w", err)
	}
	if v.now.IsZero() {
		return v, fmt.Errorf("%w: the store doesn't tell its time; nothing was deleted", ErrInconsistent)
	}
	v.readers, v.alive = make(map[string]*leaseBody), make(map[operation]bool)
	for i := range v.objects {
		v.objects[i].Name = strings.TrimPrefix(v.objects[i].Name, prefix)
		m := leasePattern.FindStringSubmatch(v.objects[i].Name)
		if m == nil || c.old(v, v.objects[i]) {
			continue
		}
		b, err := c.l.readLease(ctx, prefix+v.objects[i].Name)
		if err != nil {
			return v, fmt.Errorf("nothing was deleted: %w", err)
		}
		op, _ := hex.DecodeString(m[1])
		v.alive[operation(op)] = true
		if b != nil && b.Kind == readLease {
			v.readers[m[1]] = b
		}
	}
	return v, nil
}

// old is true of what was written longer than the grace ago. Times are cut to seconds.
func (c *collect) old(v view, o store.Info) bool {
	return v.now.Sub(o.Modified) > c.l.t.cfg.Grace+time.Second
}

// dropGenerations takes those out of the head that nobody needs, and gives the others. What only they had may go after a
// later listing.
func (c *collect) dropGenerations(ctx context.Context, v view) (keep []Generation, again bool, err error) {
	var dropped []uint64
	for i, g := range v.head.Generations {
		if i < c.l.t.cfg.Generations || g.Pinned || g.Sequence == v.head.Restoring || v.reads(g) {
			keep = append(keep, g)
		} else {
			dropped = append(dropped, g.Sequence)
		}
	}
	if len(dropped) > 0 && !c.o.DryRun {
		next := v.head.clone()
		next.Generations = keep
		if _, won, err := c.l.swap(ctx, next, v.version); !won {
			return nil, err == nil, err
		}
	}
	c.out.Dropped = append(c.out.Dropped, dropped...)
	return keep, false, nil
}

func (v view) reads(g Generation) bool {
	for _, b := range v.readers {
		if b.Manifest == g.Manifest {
			return true
		}
	}
	return false
}

// needed are the names of all that generations need.
func (c *collect) needed(ctx context.Context, v view) (map[string]bool, error) {
	needed := make(map[string]bool)
	for _, g := range v.head.Generations {
		k, err := c.l.unwrap(ctx, *v.head.Key)
		if err != nil {
			return nil, err
		}
		m := c.manifests[g.Manifest]
		if m == nil {
			if m, err = c.l.manifest(ctx, k, g); err != nil {
				return nil, fmt.Errorf("nothing was deleted, since nobody knows what this generation needs; remove it if it is lost: %w", err)
			}
			c.manifests[g.Manifest] = m
		}
		mark(needed, g.Manifest, m)
	}
	return needed, nil
}

// borrowed are the names of what readers need of generations that the head no longer has.
func (c *collect) borrowed(ctx context.Context, v view) (map[string]bool, error) {
	borrowed := make(map[string]bool)
	for _, b := range v.readers {
		if v.head.has(b.Manifest) || v.head.Key == nil {
			continue
		}
		if err := c.markReader(ctx, v, borrowed, b); err != nil {
			return nil, err
		}
	}
	return borrowed, nil
}

func mark(needed map[string]bool, name string, m *manifest) {
	needed[name] = true
	for _, p := range m.Packs {
		needed[p.Name] = true
	}
}

// markReader marks what a reader needs of a generation that the head no longer has. One whose manifest is gone has come too
// late, and has seen that itself.
func (c *collect) markReader(ctx context.Context, v view, borrowed map[string]bool, b *leaseBody) error {
	name, ok := parseObjectName(b.Manifest)
	if !ok || name.kind != manifestKind {
		return fmt.Errorf("nothing was deleted: %w", corrupt(b.Manifest, "a lease names it, and it is no manifest"))
	}
	k, err := c.l.unwrap(ctx, *v.head.Key)
	if err != nil {
		return err
	}
	data, info, err := c.l.t.cfg.Store.Get(ctx, c.l.data(b.Manifest), maxObject)
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("nothing was deleted: %w", err)
	}
	sum := sha256.Sum256(data)
	m, err := c.l.t.openManifest(k, c.l.name, Generation{
		Sequence: b.Sequence, Epoch: name.epoch, Manifest: b.Manifest, Size: info.Size, SHA256: hex.EncodeToString(sum[:]),
	}, data)
	if err != nil {
		return fmt.Errorf("nothing was deleted, since a lease names it: %w", err)
	}
	mark(borrowed, b.Manifest, m)
	return nil
}

// condemned are the names in the lists of the head, and lists those that stay in it.
func (c *collect) condemned(ctx context.Context, v view, needed map[string]bool) (names map[string]bool, lists []Condemned, err error) {
	names = make(map[string]bool)
	for _, list := range v.head.Condemned {
		if v.now.Sub(list.Time) <= keepLists {
			lists = append(lists, list)
		}
		in, gone, err := c.l.readList(ctx, list)
		if err != nil {
			return nil, nil, fmt.Errorf("nothing was deleted: %w", err)
		}
		if gone {
			continue
		}
		for _, name := range in {
			if needed[name] {
				return nil, nil, fmt.Errorf("%w: %s is condemned by %s, and a snapshot needs it; nothing was deleted: verify this lineage's snapshots, and report this", ErrInconsistent, name, list.Name)
			}
			names[name] = true
		}
	}
	return names, lists, nil
}

// sort tells what is to be deleted: left over from earlier lists; garbage, which has to be condemned first; and plain, which
// nobody relies on: lists that the head doesn't name, and leases that are over. What is condemned is so for readers, too: those
// whose lease came before it would have been seen.
func (c *collect) sort(v view, needed, borrowed, condemned map[string]bool) (left, garbage, plain []Garbage) {
	c.out.Unknown = nil
	named := make(map[string]bool)
	for _, list := range v.head.Condemned {
		named[list.Name] = true
	}
	for _, o := range v.objects {
		g := Garbage{o.Name, o.Size, o.Modified}
		n, isObject := parseObjectName(o.Name)
		isLease, isList := leasePattern.MatchString(o.Name), listPattern.MatchString(o.Name)
		switch {
		case !isObject && !isLease && !isList:
			c.out.Unknown = append(c.out.Unknown, o.Name)
		case needed[o.Name] || named[o.Name]:
		case condemned[o.Name]:
			left = append(left, g)
		case borrowed[o.Name]:
		case !c.old(v, o):
		case !isObject:
			plain = append(plain, g)
		case !v.alive[n.op]:
			garbage = append(garbage, g)
		}
	}
	return left, garbage, plain
}

// lookTwice lists again when more than half would go, and leaves what isn't in both.
func (c *collect) lookTwice(ctx context.Context, v view, garbage []Garbage) ([]Garbage, error) {
	if len(garbage)*2 <= len(v.objects) {
		return garbage, nil
	}
	infos, _, err := c.l.t.cfg.Store.List(ctx, c.l.data(""))
	if err != nil {
		return nil, fmt.Errorf("nothing was deleted: %w", err)
	}
	there := make(map[string]bool, len(infos))
	for _, i := range infos {
		there[strings.TrimPrefix(i.Name, c.l.data(""))] = true
	}
	return slices.DeleteFunc(garbage, func(g Garbage) bool { return !there[g.Name] }), nil
}

// condemn writes the list of garbage and puts it into the head that the garbage was found with, together with those lists
// that stay.
func (c *collect) condemn(ctx context.Context, v view, lists []Condemned, garbage []Garbage) (again bool, err error) {
	next := v.head.clone()
	next.Condemned = lists
	if len(garbage) > 0 {
		list, err := c.writeList(ctx, v, garbage)
		if err != nil {
			return false, err
		}
		next.Collections = list.Number
		next.Condemned = append(slices.Clone(lists), list)
	}
	_, won, err := c.l.swap(ctx, next, v.version)
	return !won && err == nil, err
}

func (c *collect) writeList(ctx context.Context, v view, garbage []Garbage) (Condemned, error) {
	b := listBody{Number: v.head.Collections + 1}
	for _, g := range garbage {
		b.Names = append(b.Names, g.Name)
	}
	data, err := encodeDocument(listFormat, b)
	if err != nil {
		return Condemned{}, err
	}
	name := listName(b.Number, newOperation())
	if _, err := c.l.put(ctx, name, data); err != nil {
		return Condemned{}, fmt.Errorf("write the list of what is going to be deleted: %w", err)
	}
	sum := sha256.Sum256(data)
	return Condemned{Number: b.Number, Name: name, SHA256: hex.EncodeToString(sum[:]), Time: v.now.UTC()}, nil
}

func (c *collect) delete(ctx context.Context, garbage []Garbage) error {
	for _, g := range garbage {
		if err := c.l.t.cfg.Store.Delete(ctx, c.l.data(g.Name)); err != nil {
			return fmt.Errorf("delete %s: %w", g.Name, err)
		}
		c.out.Deleted = append(c.out.Deleted, g)
	}
	return nil
}
