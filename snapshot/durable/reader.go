package durable

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// OpenOptions of Open.
type OpenOptions struct {
	// Lease keeps the snapshot for as long as it is open, for those who have not claimed the workload with Claim.Restore.
	Lease bool
}

// Reader is an open snapshot. Methods may be called from many goroutines.
type Reader struct {
	l      *Lineage
	ctx    context.Context
	cancel context.CancelCauseFunc
	lease  *lease

	keys       *keys
	generation Generation
	manifest   *manifest
	document   snapshot.Manifest
	packs      []readPack
	cache      *frameCache
	gets       chan struct{} // a slot for each request that is under way
	moved      atomic.Int64

	mu         sync.Mutex // guards closed
	closed     bool
	background sync.WaitGroup // of readAhead
}

// readPack is a pack as a reader needs it.
type readPack struct {
	*pack
	object  *sealed
	offsets []int64
	needed  []bool // frames that have something of this snapshot
}

// Open opens a generation, 0 being the newest, and reads its manifest. Whoever calls it closes the Reader; ctx ends all
// that it does. It takes Config.CachedFrames × 256 KiB, a few requests' bytes, and 24 bytes for each extent. Errors: ErrNone,
// those of Head, ErrCorrupt, ErrTruncated, ErrForeign, ErrVersion.
func (l *Lineage) Open(ctx context.Context, sequence uint64, o OpenOptions) (*Reader, error) {
	r := &Reader{l: l, gets: make(chan struct{}, l.t.cfg.Downloads)}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	if err := r.open(sequence, o); err != nil {
		if r.ctx.Err() != nil {
			err = errors.Join(context.Cause(r.ctx), err)
		}
		r.Close()
		return nil, fmt.Errorf("open a snapshot of %s: %w", l.name, err)
	}
	return r, nil
}

func (r *Reader) open(sequence uint64, o OpenOptions) error {
	h, err := r.l.Head(r.ctx)
	if err == nil && o.Lease {
		h, err = r.borrow(r.ctx, h, sequence)
	}
	if err != nil {
		return err
	}
	g, ok := h.Generation(sequence)
	if !ok {
		return fmt.Errorf("%w: no generation %d", ErrNone, sequence)
	}
	r.generation = g
	if r.keys, err = r.l.unwrap(r.ctx, *h.Key); err != nil {
		return err
	}
	if r.manifest, err = r.l.manifest(r.ctx, r.keys, g); err != nil {
		return err
	}
	return r.prepare()
}

// borrow writes a lease for a generation, and then reads the head again: only if it still has it, the lease counts.
func (r *Reader) borrow(ctx context.Context, h Head, sequence uint64) (Head, error) {
	for range maxTries {
		g, ok := h.Generation(sequence)
		if !ok {
			return h, fmt.Errorf("%w: no generation %d", ErrNone, sequence)
		}
		le, err := r.l.newLease(newOperation(), leaseBody{Kind: readLease, Sequence: g.Sequence, Manifest: g.Manifest})
		if err != nil {
			return h, err
		}
		if err := le.write(ctx); err != nil {
			le.end(ctx)
			return h, err
		}
		if h, err = r.l.Head(ctx); err != nil {
			le.end(ctx)
			return h, err
		}
		if now, ok := h.Generation(sequence); ok && now.Manifest == g.Manifest {
			le.keep(r.ctx, func() { r.cancel(ErrLeaseLost) })
			r.lease = le
			return h, nil
		}
		le.end(ctx)
	}
	return h, ErrContended
}

func (r *Reader) prepare() (err error) {
	if r.document, err = parseDocument(r.manifest.document); err != nil {
		return err
	}
	if err := r.manifest.fits(r.document); err != nil {
		return corrupt(r.generation.Manifest, "%v", err)
	}
	needed := r.manifest.neededFrames()
	for i := range r.manifest.Packs {
		p := &r.manifest.Packs[i]
		r.packs = append(r.packs, readPack{pack: p, object: p.object(r.keys), offsets: p.offsets(), needed: needed[i]})
	}
	r.cache = newFrameCache(r.l.t.cfg.CachedFrames)
	return nil
}

// Close ends reads that are under way, and the lease.
func (r *Reader) Close() {
	r.cancel(errors.New("the snapshot was closed"))
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.background.Wait()
	if r.lease != nil {
		r.lease.end(context.WithoutCancel(r.ctx))
	}
}

// within is ctx, which ends with the Reader, too.
func (r *Reader) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(r.ctx, func() { cancel(context.Cause(r.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// Generation is what the head says of it.
func (r *Reader) Generation() Generation { return r.generation }

// Manifest is the local tier's.
func (r *Reader) Manifest() snapshot.Manifest { return r.document }

// Document is manifest.json, as it stood.
func (r *Reader) Document() []byte { return r.manifest.document }

// Moved is how many bytes were read from the store, the manifest left out.
func (r *Reader) Moved() int64 { return r.moved.Load() }

// File is one of a snapshot's files. ReadAt may be called from many goroutines.
type File struct {
	r    *Reader
	file *file
	next atomic.Int64 // where the last read ended
}

// File opens one by its name: ErrNone.
func (r *Reader) File(name string) (*File, error) {
	for i := range r.manifest.Files {
		if r.manifest.Files[i].Name == name {
			return &File{r: r, file: &r.manifest.Files[i]}, nil
		}
	}
	return nil, fmt.Errorf("%w: snapshot %d has no file %q", ErrNone, r.generation.Sequence, name)
}

// Size in bytes.
func (f *File) Size() int64 { return f.file.Size }

// Close does nothing: the Reader is what is closed.
func (f *File) Close() error { return nil }

const (
	// readStep is how much of a read is asked for at a time, so that a large one takes no more memory.
	readStep = 4 << 20
	// window is how many of the frames that follow are kept ready while a file is read from front to back, and batch how many
	// of them are asked for together at least, in the background.
	window = 32
	batch  = 12
	// near is how far from the end of the last read the next may begin to count as that.
	near = 4 << 20
)

// ReadAt reads as io.ReaderAt says. What it returns was compared with what was written. Errors: ErrCorrupt, ErrForeign,
// ErrLeaseLost, those of the store.
func (f *File) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 {
		return 0, fmt.Errorf("read %s at %d", f.file.Name, off)
	}
	last := f.next.Swap(off + int64(len(p)))
	ahead := off >= last-near && off <= last+near
	want := len(p)
	if rest := f.file.Size - off; int64(want) > rest {
		want = int(max(rest, 0))
	}
	for n < want {
		step := min(want-n, readStep)
		if err := f.r.read(f.file, p[n:n+step], off+int64(n), ahead); err != nil {
			return n, fmt.Errorf("read %s of snapshot %d: %w", f.file.Name, f.r.generation.Sequence, err)
		}
		n += step
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// piece is a part of a read that lies in one frame, or in none.
type piece struct {
	to    []byte
	frame frameID
	from  int // in the frame's pages
}

// frameID is a frame of one of a reader's packs.
type frameID struct{ pack, frame int32 }

// pieces cuts [off, off+len(p)) at the borders of extents and frames.
func (f *file) pieces(p []byte, off int64) (out []piece) {
	i := sort.Search(len(f.extents), func(i int) bool { return (f.extents[i].page+f.extents[i].count)*pageSize > off })
	for len(p) > 0 {
		e := f.extents[i]
		in := off - e.page*pageSize // bytes into the extent
		n := min(int64(len(p)), e.count*pageSize-in)
		q := piece{frame: frameID{pack: zeros}}
		if e.pack != zeros {
			at := int64(e.slot)*pageSize + in // in the pack's pages
			q.frame, q.from = frameID{e.pack, int32(at / frameSize)}, int(at%frameSize)
			n = min(n, frameSize-int64(q.from))
		}
		q.to = p[:n]
		out = append(out, q)
		if p, off = p[n:], off+n; in+n == e.count*pageSize {
			i++
		}
	}
	return out
}

// read fills p. It asks for all frames at once that are not in the cache, those that follow each other in one request.
func (r *Reader) read(f *file, p []byte, off int64, ahead bool) error {
	pieces := f.pieces(p, off)
	var entries []*frameEntry
	defer func() { r.cache.release(entries) }()
	var mine []*frameEntry
	at := make(map[frameID]*frameEntry)
	for _, q := range pieces {
		if q.frame.pack == zeros || at[q.frame] != nil {
			continue
		}
		e, fill := r.cache.take(q.frame)
		at[q.frame] = e
		entries = append(entries, e)
		if fill {
			mine = append(mine, e)
		}
	}
	if ahead && len(entries) > 0 {
		r.readAhead(entries[len(entries)-1].id)
	}
	r.fill(mine)
	for _, q := range pieces {
		if q.frame.pack == zeros {
			clear(q.to)
			continue
		}
		e := at[q.frame]
		<-e.ready
		if e.err != nil {
			return e.err
		}
		if len(e.pages) < q.from+len(q.to) {
			return corrupt(r.packs[q.frame.pack].Name, "frame %d is shorter than an extent says", q.frame.frame)
		}
		copy(q.to, e.pages[q.from:])
	}
	return nil
}

// readAhead gets in the background what is needed of the frames that follow in the pack, unless few of them are missing.
func (r *Reader) readAhead(id frameID) {
	p := r.packs[id.pack]
	end := min(len(p.needed), int(id.frame)+1+window)
	var missing []frameID
	for n := int(id.frame) + 1; n < end; n++ {
		if next := (frameID{id.pack, int32(n)}); p.needed[n] && !r.cache.has(next) {
			missing = append(missing, next)
		}
	}
	if len(missing) == 0 || len(missing) < batch && end < len(p.needed) || r.ctx.Err() != nil {
		return
	}
	var mine, others []*frameEntry
	for _, next := range missing {
		if e, fill := r.cache.take(next); fill {
			mine = append(mine, e)
		} else {
			others = append(others, e)
		}
	}
	r.cache.release(others)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		r.fill(mine) // which fails at once
		r.cache.release(mine)
		return
	}
	r.background.Go(func() {
		r.fill(mine)
		r.cache.release(mine)
	})
}

// fill gets the frames of entries and marks them ready.
func (r *Reader) fill(mine []*frameEntry) {
	sort.Slice(mine, func(i, j int) bool {
		a, b := mine[i].id, mine[j].id
		return a.pack < b.pack || a.pack == b.pack && a.frame < b.frame
	})
	var wg sync.WaitGroup
	for len(mine) > 0 {
		n := 1
		for n < len(mine) && mine[n].id == (frameID{mine[0].id.pack, mine[0].id.frame + int32(n)}) {
			n++
		}
		run := mine[:n]
		mine = mine[n:]
		if len(mine) == 0 {
			r.fillRun(run)
		} else {
			wg.Go(func() { r.fillRun(run) })
		}
	}
	wg.Wait()
}

// fillRun gets frames that follow each other.
func (r *Reader) fillRun(run []*frameEntry) {
	id := run[0].id
	data, err := r.get(r.ctx, id, len(run))
	for i, e := range run {
		if e.err = err; err == nil {
			p := &r.packs[id.pack]
			n := int(id.frame) + i
			buf := new([frameSize]byte)
			e.pages, e.err = r.decode(r.ctx, buf, p, n, data[p.offsets[n]-p.offsets[id.frame]:][:p.Frames[n]])
			if e.err == nil && &e.pages[0] != &buf[0] { // a part of data, which is not to be kept
				e.pages = buf[:copy(buf[:], e.pages)]
			}
		}
		close(e.ready)
	}
}

// get reads n frames from the store, as they are stored.
func (r *Reader) get(ctx context.Context, id frameID, n int) ([]byte, error) {
	if err := send(ctx, r.gets, struct{}{}); err != nil {
		return nil, err
	}
	defer func() { <-r.gets }()
	p := &r.packs[id.pack]
	length := p.offsets[int(id.frame)+n] - p.offsets[id.frame]
	data, err := r.l.t.cfg.Store.GetRange(ctx, r.l.data(p.Name), p.offsets[id.frame], length)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, r.explain(ctx, p, truncated(p.Name, "it ends before frame %d of %d: %v", int(id.frame)+n, len(p.Frames), err))
	}
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, cause
	}
	if err != nil {
		return nil, fmt.Errorf("read frames of %s: %w", p.Name, err)
	}
	r.moved.Add(length)
	return data, nil
}

// decode gives the pages of a stored frame, which it overwrites.
func (r *Reader) decode(ctx context.Context, buf *[frameSize]byte, p *readPack, n int, stored []byte) ([]byte, error) {
	plain, err := p.object.open(stored, uint32(n), false)
	if err != nil {
		return nil, r.explain(ctx, p, err)
	}
	pages, err := r.l.t.codec.decode(buf, plain, p.pagesIn(n))
	if err != nil {
		return nil, corrupt(p.Name, "frame %d: %v", n, err)
	}
	return pages, nil
}

// explain looks at the header of a pack of which something is wrong: an object that was exchanged, or is of another version, has
// another one.
func (r *Reader) explain(ctx context.Context, p *readPack, err error) error {
	header, herr := r.l.t.cfg.Store.GetRange(ctx, r.l.data(p.Name), 0, headerLength)
	if herr != nil {
		return err
	}
	if _, herr := openHeader(r.keys, p.object.name, header); herr != nil && !errors.Is(herr, snapshot.ErrCorrupt) {
		return herr
	}
	return err
}
