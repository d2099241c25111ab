package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Verify reads all that the snapshot needs and compares every digest there is: of packs, frames, pages and files. It takes
// as many packs at a time as there are uploads. Errors: ErrNone for a pack that is gone, ErrCorrupt, ErrTruncated, ErrForeign,
// ErrVersion.
func (r *Reader) Verify(ctx context.Context, tell func(Progress)) error {
	ctx, stop := r.within(ctx)
	defer stop()
	if err := r.verify(ctx, tell); err != nil {
		return fmt.Errorf("verify snapshot %d of %s: %w", r.generation.Sequence, r.l.name, err)
	}
	return nil
}

func (r *Reader) verify(ctx context.Context, tell func(Progress)) error {
	hashes := make([][]pageHash, len(r.packs))
	total := int64(0)
	for _, p := range r.packs {
		total += p.Size
	}
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.l.t.cfg.Uploads)
	for i := range r.packs {
		g.Go(func() (err error) {
			if hashes[i], err = r.verifyPack(ctx, &r.packs[i]); err == nil && tell != nil {
				n := done.Add(r.packs[i].Size)
				tell(Progress{Image: total, Done: n, Moved: n})
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	zero := newHasher(r.keys).hash(zeroPage[:])
	for _, f := range r.manifest.Files {
		sum := newRoot(f.Size)
		for _, e := range f.extents {
			for i := range e.count {
				if e.pack == zeros {
					sum.add(zero)
				} else {
					sum.add(hashes[e.pack][int64(e.slot)+i])
				}
			}
		}
		if sum.sum() != f.Root {
			return corrupt(f.Name, "its pages are not those that were saved")
		}
	}
	return nil
}

// verifyPack gives the hashes of the pages that are in it.
func (r *Reader) verifyPack(ctx context.Context, p *readPack) ([]pageHash, error) {
	data, _, err := r.l.t.cfg.Store.Get(ctx, r.l.data(p.Name), maxObject)
	if errors.Is(err, store.ErrNotFound) {
		return nil, fmt.Errorf("%w: pack %s is gone: %w", ErrNone, p.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p.Name, err)
	}
	if _, err := openHeader(r.keys, p.object.name, data); err != nil {
		return nil, err
	}
	if int64(len(data)) < p.Size {
		return nil, truncated(p.Name, "%d bytes, want %d", len(data), p.Size)
	}
	if sum := sha256.Sum256(data); hex.EncodeToString(sum[:]) != p.SHA256 {
		return nil, corrupt(p.Name, "its SHA-256 is not the one of the manifest")
	}
	hashes, err := decodeHashes(p.pack, p.object, data[p.offsets[len(p.Frames)]:])
	if err != nil {
		return nil, err
	}
	var buf [frameSize]byte
	h := newHasher(r.keys)
	for i := range p.Frames {
		pages, err := r.decode(ctx, &buf, p, i, data[p.offsets[i]:p.offsets[i+1]])
		if err != nil {
			return nil, err
		}
		for n := range len(pages) / pageSize {
			if h.hash(pages[n*pageSize:][:pageSize]) != hashes[i*framePages+n] {
				return nil, corrupt(p.Name, "page %d of frame %d has another hash", n, i)
			}
		}
	}
	return hashes, nil
}
