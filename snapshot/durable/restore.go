package durable

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

const (
	// A restore reads a pack in requests of rangeSize bytes at most, and of a small snapshot in smaller ones, of leastRange at least: so that
	// about rangesEach are read one after the other by each that reads, and what is read is decoded meanwhile.
	rangeSize  = 4 << 20
	leastRange = 512 << 10
	rangesEach = 8
	// gapSize is how much between two frames is rather read than asked around.
	gapSize = 128 << 10
)

// Restore writes the snapshot into dir, as snapshot's Export does: the files, what is written of each chunk compared with its checksum, and
// at last manifest.json, so that what has one is whole; snapshot.OpenExport takes it from there. dir must be there, without any of the
// files: else os.ErrExist. On error nothing is left. The files are not synced. It takes Config.Downloads × 5 MiB.
func (r *Reader) Restore(ctx context.Context, dir string, tell func(Progress)) error {
	ctx, stop := r.within(ctx)
	defer stop()
	if err := r.restore(ctx, dir, tell); err != nil {
		return fmt.Errorf("restore snapshot %d of %s: %w", r.generation.Sequence, r.l.name, err)
	}
	return nil
}

func (r *Reader) restore(ctx context.Context, dir string, tell func(Progress)) (err error) {
	var files []*os.File
	defer func() {
		for _, f := range files {
			err = errors.Join(err, f.Close())
		}
		if err == nil {
			err = atomicfile.Write(filepath.Join(dir, documentName), r.manifest.document, 0o600, atomicfile.Options{})
		}
		if err != nil {
			for _, f := range files {
				err = errors.Join(err, os.Remove(f.Name()))
			}
		}
	}()
	if _, err := os.Lstat(filepath.Join(dir, documentName)); err == nil {
		return fmt.Errorf("%s: %w", filepath.Join(dir, documentName), os.ErrExist)
	}
	for _, f := range r.manifest.Files {
		to, err := os.OpenFile(filepath.Join(dir, f.Name), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		files = append(files, to)
		if err := to.Truncate(f.Size); err != nil {
			return err
		}
	}
	of := make([]*sums, len(files))
	for i, f := range r.manifest.Files {
		of[i] = newSums(f.Size)
	}
	if err := r.fetchAll(ctx, files, of, tell); err != nil {
		return err
	}
	if err := context.Cause(r.ctx); err != nil { // lost while the last bytes came
		return err
	}
	return compareAll(of, r.document)
}

// target is where pages of a pack belong.
type target struct {
	file  int32
	slot  int32
	count int64
	page  int64
}

// fetchAll goes through the packs, not the files: each frame is read once.
func (r *Reader) fetchAll(ctx context.Context, files []*os.File, of []*sums, tell func(Progress)) error {
	targets := make([][]target, len(r.packs))
	for i, f := range r.manifest.Files {
		for _, e := range f.extents {
			if e.pack != zeros {
				targets[e.pack] = append(targets[e.pack], target{int32(i), e.slot, e.count, e.page})
			}
		}
	}
	step := min(rangeSize, max(leastRange, r.generation.Fetch/int64(rangesEach*r.l.t.cfg.Downloads)))
	var done atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(r.l.t.cfg.Downloads)
	for i := range r.packs {
		// Those of one slot lie side by side, so a frame's are found by a search.
		slices.SortFunc(targets[i], func(a, b target) int { return cmp.Compare(a.slot, b.slot) })
		long := int64(0)
		for _, t := range targets[i] {
			long = max(long, t.count)
		}
		for first := 0; first < len(r.packs[i].Frames); {
			var n int
			if first, n = r.packs[i].nextRange(first, step); n == 0 {
				break
			}
			from := first
			g.Go(func() error {
				if ctx.Err() != nil {
					return context.Cause(ctx)
				}
				return r.fetch(ctx, int32(i), from, n, func(frame int, pages []byte) error {
					put, err := writePages(files, of, targets[i], long, frame, pages)
					if tell != nil {
						tell(Progress{Image: imageSize(r.document), Done: done.Add(put), Moved: r.moved.Load()})
					}
					return err
				})
			})
			first += n
		}
	}
	return g.Wait()
}

// nextRange is the next run of frames to read in one request, of about step bytes: from the first needed one on, over small gaps.
func (p *readPack) nextRange(from int, step int64) (first, n int) {
	for from < len(p.needed) && !p.needed[from] {
		from++
	}
	end := from
	for i := from; i < len(p.needed); i++ {
		if p.offsets[i+1]-p.offsets[from] > step && i > from || p.offsets[i]-p.offsets[end] > gapSize {
			break
		}
		if p.needed[i] {
			end = i + 1
		}
	}
	return from, end - from
}

// fetch reads frames and hands over the pages of those that are needed.
func (r *Reader) fetch(ctx context.Context, pack int32, first, n int, put func(frame int, pages []byte) error) error {
	data, err := r.get(ctx, frameID{pack, int32(first)}, n)
	if err != nil {
		return err
	}
	p := &r.packs[pack]
	var buf [frameSize]byte
	for i := first; i < first+n; i++ {
		if !p.needed[i] {
			continue
		}
		pages, err := r.decode(ctx, &buf, p, i, data[p.offsets[i]-p.offsets[first]:][:p.Frames[i]])
		if err != nil {
			return err
		}
		if err := put(i, pages); err != nil {
			return err
		}
	}
	return nil
}

// writePages writes the pages of a frame to wherever they belong. targets are ordered by slot, and none is longer than long.
func writePages(to []*os.File, of []*sums, targets []target, long int64, frame int, pages []byte) (put int64, err error) {
	from, end := int64(frame)*framePages, int64(frame)*framePages+int64(len(pages)/pageSize)
	i, _ := slices.BinarySearchFunc(targets, from-long, func(t target, slot int64) int { return cmp.Compare(int64(t.slot), slot) })
	for ; i < len(targets) && int64(targets[i].slot) < end; i++ {
		t := targets[i]
		a, b := max(from, int64(t.slot)), min(end, int64(t.slot)+t.count)
		if a >= b {
			continue
		}
		off := (t.page + a - int64(t.slot)) * pageSize
		part := pages[(a-from)*pageSize : (b-from)*pageSize]
		part = part[:min(int64(len(part)), of[t.file].size-off)]
		if _, err := to[t.file].WriteAt(part, off); err != nil {
			return put, err
		}
		of[t.file].add(part, off)
		put += int64(len(part))
	}
	return put, nil
}

// compareAll compares what was written with the checksums of the document.
func compareAll(of []*sums, doc snapshot.Manifest) error {
	for i, f := range doc.Files {
		for n, want := range f.CRC32C {
			if sum := of[i].chunk(n); sum != want {
				return wrongChunk(f.Name, int64(n), sum, want)
			}
		}
	}
	return nil
}
