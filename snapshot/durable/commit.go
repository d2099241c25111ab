package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// CommitOptions of Commit.
type CommitOptions struct {
	Full     bool           // take no page of an earlier generation as known
	Progress func(Progress) // called from many goroutines
	Limit    int64          // of bytes of new objects; 0: none. ErrLimit once they would be more
}

// Result of Commit.
type Result struct {
	Generation Generation
	Already    bool     // it was there before: nothing was done
	Full       bool     // no page of an earlier generation was used
	Passes     int      // how often the image was read; more than 1 after a collector's condemnation
	Damaged    []string // packs of the newest generation that are gone or wrong, and so were not relied on
}

// Commit uploads a snapshot and makes it the newest generation. It counts when Commit has returned nil; after any error
// the generations are as they were, or have it: doing it again finds out (Result.Already). It takes no more memory than
// Config.Uploads + 1 packs of 32 MiB, and about 50 bytes for each page.
//
// Errors: ErrLimit, ErrFenced, ErrDiverged, ErrStale, ErrFull, ErrDestroyed; ErrCorrupt and ErrTruncated with the file's name for a local
// image that isn't what its manifest says; those of Head and of the store.
func (l *Lineage) Commit(ctx context.Context, im Image, o CommitOptions) (Result, error) {
	doc, err := parseDocument(im.Document)
	if err != nil {
		return Result{}, fmt.Errorf("commit: %w", err)
	}
	files, err := im.openFiles(doc)
	if err != nil {
		return Result{}, fmt.Errorf("commit snapshot %d: %w", doc.Sequence, err)
	}
	defer closeAll(files)
	c := &commit{l: l, o: o, document: im.Document}
	c.u = &upload{l: l, limit: o.Limit, op: newOperation(), epoch: doc.Epoch, doc: doc, files: files, tell: o.Progress, index: make(map[pageHash]place)}
	r, err := c.run(ctx)
	if err != nil {
		return r, fmt.Errorf("commit snapshot %d of %s: %w", doc.Sequence, l.name, err)
	}
	return r, nil
}

// commit is one call of Commit. head is the one that it is planned with.
type commit struct {
	l        *Lineage
	o        CommitOptions
	document []byte
	u        *upload

	head    Head
	version store.Version
	base    *Generation // whose packs are relied on
	result  Result
}

// maxPasses bounds how often an image is read because collectors condemn what was uploaded. Each is at least a grace.
const maxPasses = 5

func (c *commit) run(ctx context.Context) (Result, error) {
	var err error
	if c.head, c.version, err = c.l.read(ctx); err != nil {
		return c.result, err
	}
	if there, err := c.check(); there || err != nil {
		return c.result, err
	}
	if c.u.keys, err = c.l.unwrap(ctx, *c.head.Key); err != nil {
		return c.result, err
	}
	le, err := c.l.newLease(c.u.op, leaseBody{Kind: uploadLease})
	if err != nil {
		return c.result, err
	}
	le.keep(ctx, func() {}) // nothing rests on it but how much is uploaded twice
	defer le.end(ctx)
	if err := c.plan(ctx); err != nil {
		return c.result, err
	}
	for again := true; ; {
		if again {
			if c.result.Passes++; c.result.Passes > maxPasses {
				return c.result, fmt.Errorf("%w: collectors have condemned the upload %d times: give them a longer grace", ErrContended, maxPasses)
			}
			if err := c.u.run(ctx); err != nil {
				return c.result, err
			}
		}
		var done bool
		if done, again, err = c.finish(ctx); done || err != nil {
			return c.result, err
		}
	}
}

// check says whether the snapshot may become a generation of the head; there: it is one already.
func (c *commit) check() (there bool, err error) {
	h, doc := &c.head, c.u.doc
	if h.State == Deleted {
		return false, ErrDestroyed
	}
	if err := c.l.fenced(*h); err != nil {
		return false, err
	}
	if doc.Epoch > h.Epoch {
		return false, fmt.Errorf("%w: it was made under epoch %d, and the head has %d: the head was put back, or the snapshot is another workload's", ErrRolledBack, doc.Epoch, h.Epoch)
	}
	k, err := c.l.cached()
	if err != nil {
		return false, err
	}
	if g, ok := h.Generation(doc.Sequence); ok && doc.Sequence != 0 {
		if g.Digest != k.digest(c.document) {
			return false, fmt.Errorf("%w: %d of epoch %d here, of epoch %d there: both are kept; look at both, and remove one", ErrDiverged, doc.Sequence, doc.Epoch, g.Epoch)
		}
		c.result.Generation, c.result.Already = g, true
		return true, nil
	}
	if newest, ok := h.Newest(); doc.Sequence < h.Next || ok && doc.Epoch < newest.Epoch {
		return false, fmt.Errorf("%w: it is %d of epoch %d, and the durable tier has come to %d of epoch %d", ErrStale, doc.Sequence, doc.Epoch, h.Next-1, newest.Epoch)
	}
	if len(h.Generations) >= maxGenerations {
		return false, fmt.Errorf("%w: %d: collect garbage, unpin some", ErrFull, len(h.Generations))
	}
	return false, nil
}

// cached is the key that the last head was verified with.
func (l *Lineage) cached() (*keys, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keys == nil {
		return nil, ErrDestroyed
	}
	return l.keys, nil
}

// plan learns the pages of the newest generation.
func (c *commit) plan(ctx context.Context) error {
	g, ok := c.head.Newest()
	if !ok || c.o.Full || g.Chain >= maxChain {
		return nil
	}
	m, err := c.l.manifest(ctx, c.u.keys, g)
	if damaged(err) {
		c.result.Damaged = append(c.result.Damaged, g.Manifest)
		return nil
	}
	if err != nil {
		return err
	}
	skipped, err := c.u.learn(ctx, m)
	if err != nil {
		return err
	}
	c.result.Damaged, c.base = skipped, &g
	return nil
}

// finish writes the manifest and the head. again: packs have to be uploaded once more.
func (c *commit) finish(ctx context.Context) (done, again bool, err error) {
	g, err := c.writeManifest(ctx)
	if err != nil {
		return false, false, err
	}
	for try := range maxTries {
		if try > 0 {
			if err := c.l.t.backoff(ctx, try); err != nil {
				return false, false, err
			}
		}
		next := c.head.clone()
		next.Generations = slices.Insert(next.Generations, 0, g)
		next.Next = g.Sequence + 1
		_, won, err := c.l.swap(ctx, next, c.version)
		if won {
			c.result.Generation = g
			return true, false, nil
		}
		before := c.head
		if rerr := c.reread(ctx); rerr != nil {
			return false, false, errors.Join(err, rerr)
		}
		if c.head.has(g.Manifest) {
			c.result.Generation = g
			return true, false, nil
		}
		if err != nil && c.head.Revision == before.Revision {
			return false, false, err
		}
		if there, err := c.check(); there || err != nil {
			return there, false, err
		}
		again, anew, err := c.reconcile(ctx, before, g.Manifest)
		if again || anew || err != nil {
			return false, again, err
		}
	}
	return false, false, ErrContended
}

func (c *commit) reread(ctx context.Context) (err error) {
	c.head, c.version, err = c.l.read(ctx)
	return err
}

// reconcile plans with a head that isn't the one of before. Objects that were uploaded may stand in lists of condemned
// ones that have come since; those are not used, whether they are still there or not. again: the last pass relied on one.
// anew: only the manifest was.
func (c *commit) reconcile(ctx context.Context, before Head, manifest string) (again, anew bool, err error) {
	gone, all, err := c.l.condemnedSince(ctx, before.Collections, c.head)
	if err != nil {
		return false, false, err
	}
	// What the base has can't be condemned while the head has the base.
	lost := all && c.base != nil && !c.head.has(c.base.Manifest)
	again = c.u.drop(func(p *sendPack) bool {
		return gone[p.Name] || p.own && all || !p.own && lost
	})
	return again, all || gone[manifest], nil
}

// writeManifest uploads that of the last pass, under a new name each time.
func (c *commit) writeManifest(ctx context.Context) (Generation, error) {
	m := c.u.manifest(c.l.name, c.document)
	if c.result.Full = !c.u.relies(m); !c.result.Full {
		m.Chain, m.Parent = c.base.Chain+1, c.base.Sequence
	}
	object, name, err := c.l.t.sealManifest(c.u, m)
	if err != nil {
		return Generation{}, err
	}
	if err := c.u.reserve(int64(len(object))); err != nil {
		return Generation{}, err
	}
	if _, err := c.u.put(ctx, name, object); err != nil {
		return Generation{}, err
	}
	sum := sha256.Sum256(object)
	return Generation{
		Sequence: m.Sequence, Epoch: m.Epoch, Created: m.Created, Manifest: name, SHA256: hex.EncodeToString(sum[:]), Size: int64(len(object)),
		Digest: c.u.keys.digest(c.document), Image: imageSize(c.u.doc), Sent: c.u.sent.Load(), Fetch: m.fetch() + int64(len(object)), Chain: m.Chain,
	}, nil
}

func (t *Tier) sealManifest(u *upload, m *manifest) (object []byte, name string, err error) {
	plain, err := m.encode()
	if err != nil {
		return nil, "", err
	}
	o := newObject(u.keys, u.name(manifestKind))
	object = o.seal(slices.Clone(o.header[:]), t.codec.enc.EncodeAll(plain, []byte{zstdFrame}), 0, true)
	if len(object) > maxObject {
		return nil, "", fmt.Errorf("the manifest has %d bytes, at most %d can be kept: the image is too large or too scattered", len(object), maxObject)
	}
	return object, o.name.String(), nil
}

// manifest reads that of a generation.
func (l *Lineage) manifest(ctx context.Context, k *keys, g Generation) (*manifest, error) {
	data, _, err := l.t.cfg.Store.Get(ctx, l.data(g.Manifest), maxObject)
	if err != nil {
		return nil, fmt.Errorf("read the manifest of generation %d: %w", g.Sequence, err)
	}
	m, err := l.t.openManifest(k, l.name, g, data)
	if err != nil {
		return nil, fmt.Errorf("manifest of generation %d: %w", g.Sequence, err)
	}
	return m, nil
}

func (t *Tier) openManifest(k *keys, lineage string, g Generation, data []byte) (*manifest, error) {
	name, _ := parseObjectName(g.Manifest)
	o, err := openHeader(k, name, data)
	if err != nil {
		return nil, err
	}
	if int64(len(data)) < g.Size {
		return nil, truncated(g.Manifest, "%d bytes, want %d", len(data), g.Size)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != g.SHA256 {
		return nil, corrupt(g.Manifest, "its SHA-256 is not the one of the head")
	}
	plain, err := o.open(data[headerLength:], 0, true)
	if err != nil {
		return nil, err
	}
	if len(plain) == 0 || plain[0] != zstdFrame {
		return nil, corrupt(g.Manifest, "a frame of an unknown kind")
	}
	plain, err = t.codec.man.DecodeAll(plain[1:], nil)
	if err != nil {
		return nil, corrupt(g.Manifest, "zstd: %v", err)
	}
	m, err := decodeManifest(g.Manifest, plain)
	if err != nil {
		return nil, err
	}
	if m.Name != lineage || m.Lineage != k.lineage.String() || m.Sequence != g.Sequence || m.Epoch != g.Epoch {
		return nil, fmt.Errorf("%s: %w: it is generation %d of epoch %d of %s", g.Manifest, ErrForeign, m.Sequence, m.Epoch, m.Name)
	}
	return m, nil
}
