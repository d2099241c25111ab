package upload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// ErrKept: what was to be removed is needed, or may be. The error says by whom.
var ErrKept = errors.New("it is kept")

// ErrExists: the name that was asked for has snapshots already.
var ErrExists = errors.New("there are snapshots of that name")

// Details are what Show tells.
type Details struct {
	Listed
	Generation durable.Generation
	Manifest   snapshot.Manifest
}

// Show tells all of a generation, 0 being the newest.
func (u *Uploader) Show(ctx context.Context, name string, sequence uint64) (d Details, err error) {
	found, err := u.single(ctx, name)
	if err != nil {
		return d, err
	}
	tier, err := u.handle(found, u.opts.Keep)
	if err != nil {
		return d, err
	}
	d.Listed = u.listed(found)
	if d.Head, err = tier.Head(ctx); err != nil {
		return d, err
	}
	r, err := tier.Open(ctx, sequence, durable.OpenOptions{Lease: true})
	if err != nil {
		return d, err
	}
	defer r.Close()
	d.Generation, d.Manifest = r.Generation(), r.Manifest()
	return d, nil
}

// Pin keeps a generation, 0 being the newest, whatever its age, or ends that.
func (u *Uploader) Pin(ctx context.Context, name string, sequence uint64, pinned bool) (found string, g durable.Generation, err error) {
	if found, err = u.single(ctx, name); err != nil {
		return "", g, err
	}
	tier, err := u.handle(found, u.opts.Keep)
	if err != nil {
		return found, g, err
	}
	head, err := tier.Head(ctx)
	if err != nil {
		return found, g, err
	}
	g, ok := head.Generation(sequence)
	if !ok {
		return found, g, fmt.Errorf("%s: %w: no generation %d: hibernatectl snapshots ls %s lists them", found, durable.ErrNone, sequence, name)
	}
	if err := tier.Pin(ctx, g.Sequence, pinned); err != nil {
		return found, g, err
	}
	g.Pinned = pinned
	if !pinned {
		u.collectSoon(found)
	}
	u.roomMade(found)
	u.opts.Log.Info("a snapshot's pin was changed", "name", found, "sequence", g.Sequence, "pinned", pinned)
	return found, g, nil
}

// collectSoon has garbage looked for.
func (u *Uploader) collectSoon(name string) {
	u.mu.Lock()
	if l := u.lineages[name]; l != nil {
		l.collectAt = time.Now()
	}
	u.mu.Unlock()
	u.wake()
}

// roomMade has what was over the quota tried again.
func (u *Uploader) roomMade(name string) {
	u.mu.Lock()
	if l := u.lineages[name]; l != nil && errors.Is(l.err, ErrQuota) {
		l.final, l.next = false, time.Time{}
	}
	u.mu.Unlock()
	u.wake()
}

// Remove removes a generation, or for 0 the whole lineage: its wrapped key goes first, so that nothing of it can be read again.
// ErrKept for what is pinned, for the newest generation of a workload that is there without force, for a lineage whose workload is
// there, and for one that another node has claimed without force.
func (u *Uploader) Remove(ctx context.Context, name string, sequence uint64, force bool) (c Collected, err error) {
	if c.Name, err = u.single(ctx, name); err != nil {
		return c, err
	}
	tier, err := u.handle(c.Name, u.keepOf(c.Name))
	if err != nil {
		return c, err
	}
	head, err := tier.Head(ctx)
	if err != nil {
		return c, err
	}
	if sequence != 0 {
		err = u.removeOne(ctx, tier, head, u.listed(c.Name), sequence, force)
	} else {
		err = u.destroy(ctx, tier, head, u.listed(c.Name), force)
	}
	if err != nil {
		return c, fmt.Errorf("remove: %w", err)
	}
	u.opts.Log.Warn("snapshots were removed from the store, as a person asked for", "name", c.Name, "sequence", sequence, "all", sequence == 0)
	c.Collection, c.Err = tier.Collect(ctx, durable.CollectOptions{}) // the rest goes when it is old enough
	u.opts.Meter.Collected(len(c.Deleted), c.Bytes())
	return c, nil
}

// livesOn says where a lineage's workload may be: here, or on the node that has claimed it; "" nowhere.
func (u *Uploader) livesOn(l Listed, head durable.Head) string {
	switch {
	case l.Key.ID != "" && l.Gone.IsZero():
		return u.opts.Node
	case head.Owner != nil && (head.Owner.Node != u.opts.Node || l.Key.ID == ""):
		return head.Owner.Node
	}
	return ""
}

func (u *Uploader) removeOne(ctx context.Context, tier *durable.Lineage, head durable.Head, l Listed, sequence uint64, force bool) error {
	g, ok := head.Generation(sequence)
	if !ok {
		return fmt.Errorf("%s: %w: no generation %d", l.Name, durable.ErrNone, sequence)
	}
	newest, _ := head.Newest()
	where := u.livesOn(l, head)
	switch {
	case g.Pinned:
		return fmt.Errorf("%w: snapshot %d is pinned: hibernatectl snapshots unpin %s@%d first", ErrKept, sequence, l.Name, sequence)
	case head.Restoring == sequence:
		return fmt.Errorf("%w: snapshot %d is being restored by %s: wait for that", ErrKept, sequence, head.Owner.Node)
	case where != "" && newest.Sequence == sequence && !force:
		return fmt.Errorf("%w: snapshot %d is the newest one of a workload that is there, on %s: with --force it is removed all the same, and nothing but that node has it then", ErrKept, sequence, where)
	}
	if err := tier.Remove(ctx, sequence); err != nil {
		return err
	}
	u.noteRemoved(l.Name, sequence, head)
	u.roomMade(l.Name)
	return nil
}

// noteRemoved has Copies tell what is left.
func (u *Uploader) noteRemoved(name string, sequence uint64, before durable.Head) {
	u.mu.Lock()
	l := u.lineages[name]
	if l == nil {
		u.mu.Unlock()
		return
	}
	if l.record.Sequence == sequence {
		l.record.Removed, l.record.Left = sequence, 0
		for _, g := range before.Generations {
			if g.Sequence != sequence {
				l.record.Left = max(l.record.Left, g.Sequence)
			}
		}
	}
	l.collectAt = time.Now().Add(u.opts.Grace + time.Minute)
	u.mu.Unlock()
	u.saveNow(name)
}

func (u *Uploader) destroy(ctx context.Context, tier *durable.Lineage, head durable.Head, l Listed, force bool) error {
	here := l.Key.ID != "" && l.Gone.IsZero()
	where := u.livesOn(l, head)
	switch {
	case here:
		return fmt.Errorf("%w: its workload %s is on this node: delete the container first, or remove single snapshots by NAME@SEQUENCE", ErrKept, l.Key)
	case where != "" && !force:
		return fmt.Errorf("%w: node %s has claimed it: remove it there; or with --force, once that node is known to be gone for good", ErrKept, where)
	}
	for _, g := range head.Generations {
		if g.Pinned {
			return fmt.Errorf("%w: snapshot %d is pinned: hibernatectl snapshots unpin %s@%d first", ErrKept, g.Sequence, l.Name, g.Sequence)
		}
	}
	return u.destroyNow(ctx, tier, head, l.Name)
}

// destroyNow destroys a lineage whoever has claimed it, and notes that.
func (u *Uploader) destroyNow(ctx context.Context, tier *durable.Lineage, head durable.Head, name string) error {
	if head.Owner != nil {
		if _, err := tier.Acquire(ctx, durable.Claim{TakeOver: true}); err != nil {
			return err
		}
	}
	if err := tier.Destroy(ctx); err != nil {
		return err
	}
	u.noteDestroyed(name)
	return nil
}

func (u *Uploader) noteDestroyed(name string) {
	u.mu.Lock()
	l := u.lineages[name]
	if l != nil {
		l.record.Destroyed, l.claimed, l.tier = time.Now().UTC(), false, nil
		l.record.Sequence, l.record.Removed, l.record.Left, l.record.Expired, l.record.Has = 0, 0, 0, false, nil
		if l.record.Identity != "" {
			l.record.forgetClaim()
		}
		l.collectAt = time.Now().Add(u.opts.Grace + time.Minute)
	}
	u.mu.Unlock()
	if l != nil {
		u.saveNow(name)
	}
}

// To is where Export writes: one of both.
type To struct {
	Directory string // empty
	Archive   string // a file, pipe or descriptor that a tar archive is written to
}

// Export writes a generation, 0 being the newest, as snapshot.OpenExport takes it.
func (u *Uploader) Export(ctx context.Context, name string, sequence uint64, to To, tell func(durable.Progress)) (found string, g durable.Generation, err error) {
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
	if to.Directory != "" {
		return found, r.Generation(), r.Restore(ctx, to.Directory, tell)
	}
	f, err := os.OpenFile(to.Archive, os.O_WRONLY, 0)
	if err != nil {
		return found, g, err
	}
	return found, r.Generation(), errors.Join(r.Archive(ctx, f, tell), f.Close())
}

// Import makes a lineage of the export in dir: its only generation, which anybody may claim. ErrExists for a name that has one.
func (u *Uploader) Import(ctx context.Context, name, dir string, tell func(durable.Progress)) (g durable.Generation, err error) {
	e, err := snapshot.OpenExport(dir)
	if err != nil {
		return g, err
	}
	m, ok := e.Manifest()
	if !ok {
		return g, fmt.Errorf("%w: it has no manifest.json, and nothing else says what it may be restored with: give a directory that hibernatectl snapshots export has written", ErrNoExport)
	}
	tier, err := u.handle(name, u.opts.Keep)
	if err != nil {
		return g, err
	}
	head, err := tier.Head(ctx)
	if err != nil && !errors.Is(err, durable.ErrNone) && !errors.Is(err, durable.ErrDestroyed) {
		return g, err
	}
	begun := err == nil && len(head.Generations) == 0 && head.Owner != nil && head.Owner.Node == u.opts.Node && u.listed(name).Key.ID == ""
	if err == nil && !begun {
		return g, fmt.Errorf("%w: %s: choose another name, or remove them first: hibernatectl snapshots rm %s", ErrExists, name, name)
	}
	if head, err = tier.Acquire(ctx, durable.Claim{TakeOver: begun}); err != nil {
		return g, err
	}
	m.Sequence, m.Parent, m.Epoch, m.Lineage = max(head.Next, m.Sequence), 0, head.Epoch, ""
	document, err := snapshot.EncodeManifest(m)
	if err != nil {
		return g, err
	}
	result, err := tier.Commit(ctx, durable.Image{Document: document, Dir: dir}, durable.CommitOptions{Full: true, Progress: tell})
	if err != nil {
		return g, errors.Join(err, u.giveUpImport(ctx, tier))
	}
	return result.Generation, tier.Release(ctx)
}

// ErrNoExport: what was to be imported is none.
var ErrNoExport = errors.New("not an exported snapshot")

// giveUpImport leaves no name behind that has nothing.
func (u *Uploader) giveUpImport(ctx context.Context, tier *durable.Lineage) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endGrace)
	defer cancel()
	return tier.Destroy(ctx)
}

// Rewrapped says what came of a lineage.
type Rewrapped struct {
	Name, From, To string
	Already        bool
	Left           int // that come after it
	Err            error
}

// Rewrap wraps the data keys of all lineages, or of those that a person means by name, with the current key, and calls tell after each.
// Nothing but heads is written, so it takes one read and one write each; ended anywhere, it goes on when it is called again. What
// tell returns ends it.
func (u *Uploader) Rewrap(ctx context.Context, name string, dryRun bool, tell func(Rewrapped) error) error {
	names, err := u.resolve(ctx, name)
	if err != nil {
		return err
	}
	for i, name := range names {
		r := Rewrapped{Name: name, To: u.opts.Keys.Current.ID(), Left: len(names) - i - 1}
		var tier *durable.Lineage
		var head durable.Head
		if tier, r.Err = u.handle(name, u.opts.Keep); r.Err == nil {
			head, r.Err = tier.Head(ctx)
		}
		if head.Key != nil {
			r.From = head.Key.ID
		}
		if r.Already = errors.Is(r.Err, durable.ErrDestroyed) || r.From == r.To; errors.Is(r.Err, durable.ErrDestroyed) {
			r.Err = nil
		}
		if r.Err == nil && !r.Already && !dryRun {
			r.Err = tier.Rewrap(ctx)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if r.Err == nil && !r.Already && !dryRun {
			u.opts.Log.Info("the key of a workload's snapshots is wrapped anew", "name", name, "from", r.From, "to", r.To, "left", r.Left)
		}
		if err := tell(r); err != nil {
			return err
		}
	}
	return nil
}
