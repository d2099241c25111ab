package durable

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"hash/crc32"
	"io"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Progress is told while a snapshot is uploaded or restored.
type Progress struct {
	Image int64 // bytes of all files
	Done  int64 // of them that were looked at, or restored
	Moved int64 // bytes that were written to the store, or read from it
}

// place is where a page is: in which of an upload's packs, and where in it.
type place struct{ pack, slot int32 }

// upload is one snapshot on its way into the store: what it knows of pages that are there, and the packs that it writes.
//
// A pass reads all files once. Its parts are joined by channels with bounds, which is all the memory that it takes: chunks of
// 1 MiB are read, hashed and compared with their checksums by the workers; sequence takes them in order, looks pages up and
// puts new ones into frames; the workers encrypt those; assemble puts them into packs in order; up to
// Config.Uploads packs are sent at a time.
type upload struct {
	l     *Lineage
	keys  *keys
	op    operation
	epoch uint64
	doc   snapshot.Manifest
	files []*os.File
	tell  func(Progress)
	limit int64 // of bytes of new objects; 0: none

	next  uint32 // number of the next object
	index map[pageHash]place
	packs []*sendPack // of the base, and own ones
	out   []file      // of the last pass

	done, sent atomic.Int64
	unpaid     atomic.Int64 // of sent, not yet told to Config.Pace
	reserved   int64        // bytes of new objects, sent or about to be; one goroutine at a time
}

// sendPack is a pack that the new manifest may name.
type sendPack struct {
	pack
	own     bool
	dropped bool // deleted, or going to be
	hashes  []pageHash
	object  *sealed // of an own one while it is made
}

// chunk is 1 MiB of a file, hashed.
type chunk struct {
	file   int
	number int64
	data   []byte
	hashes [snapshot.ChunkSize / pageSize]pageHash
	zero   [snapshot.ChunkSize / pageSize]bool
	err    error
	done   chan struct{}
}

// work is a frame that is to be made: its pages first, then what is stored.
type work struct {
	pack   *sendPack
	number uint32
	last   bool // of the pack
	pages  []byte
	plain  []byte
	stored []byte
	done   chan struct{}
}

type pass struct {
	*upload
	ctx    context.Context
	jobs   chan func(*worker)
	chunks chan *chunk
	frames chan *work
	packs  chan *[]byte // buffers of packs
	bufs   sync.Pool    // of *chunk
	works  sync.Pool
	group  *errgroup.Group
}

type worker struct{ hasher *hasher }

// run makes a pass: afterwards out says where each page is.
func (u *upload) run(ctx context.Context) error {
	u.done.Store(0)
	g, ctx := errgroup.WithContext(ctx)
	n := u.l.t.cfg.Workers
	p := &pass{
		upload: u, ctx: ctx, group: g,
		jobs: make(chan func(*worker)), chunks: make(chan *chunk, 2*n), frames: make(chan *work, 4*n),
		packs: make(chan *[]byte, u.l.t.cfg.Uploads+1),
	}
	for range cap(p.packs) {
		p.packs <- new([]byte)
	}
	p.bufs.New = func() any { return &chunk{data: make([]byte, snapshot.ChunkSize)} }
	p.works.New = func() any { return &work{pages: make([]byte, 0, frameSize)} }
	stop := make(chan struct{})
	var workers sync.WaitGroup
	for range n {
		workers.Go(func() { p.work(stop) })
	}
	g.Go(p.read)
	g.Go(p.sequence)
	g.Go(p.assemble)
	err := g.Wait()
	close(stop)
	workers.Wait()
	return err
}

func (p *pass) work(stop chan struct{}) {
	w := &worker{hasher: newHasher(p.keys)}
	for {
		select {
		case job := <-p.jobs:
			began := time.Now()
			job(w)
			if pace := p.l.t.cfg.Pace; pace != nil {
				pace(p.ctx, time.Since(began), p.unpaid.Swap(0))
			}
		case <-stop:
			return
		}
	}
}

func send[T any](ctx context.Context, to chan T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func wait(ctx context.Context, done chan struct{}) error {
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// read gives the chunks of all files to the workers, and in order to sequence.
func (p *pass) read() error {
	defer close(p.chunks)
	for i, f := range p.doc.Files {
		for n := range f.CRC32C {
			c := p.bufs.Get().(*chunk)
			c.file, c.number, c.err, c.done = i, int64(n), nil, make(chan struct{})
			if err := send(p.ctx, p.chunks, c); err != nil {
				return err
			}
			if err := send(p.ctx, p.jobs, func(w *worker) { p.hash(w, c) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// hash reads a chunk. Its last page is filled up with zeros.
func (p *pass) hash(w *worker, c *chunk) {
	defer close(c.done)
	f := p.doc.Files[c.file]
	off := c.number * snapshot.ChunkSize
	c.data = c.data[:min(snapshot.ChunkSize, f.Size-off)]
	if _, err := p.files[c.file].ReadAt(c.data, off); err != nil {
		if c.err = fmt.Errorf("read chunk %d of %s: %w", c.number, f.Name, err); errors.Is(err, io.EOF) {
			c.err = truncated(f.Name, "ends in chunk %d", c.number)
		}
		return
	}
	if sum := crc32.Checksum(c.data, castagnoli); sum != f.CRC32C[c.number] {
		c.err = wrongChunk(f.Name, c.number, sum, f.CRC32C[c.number])
		return
	}
	if used := len(c.data); used%pageSize != 0 {
		c.data = c.data[:pagesOf(int64(used))*pageSize]
		clear(c.data[used:])
	}
	for i := range len(c.data) / pageSize {
		page := c.data[i*pageSize:][:pageSize]
		c.hashes[i], c.zero[i] = w.hasher.hash(page), isZero(page)
	}
}

// sequence looks up each page, in order, and makes frames of those that are new.
func (p *pass) sequence() error {
	defer close(p.frames)
	p.out = make([]file, len(p.doc.Files))
	roots := make([]root, len(p.out))
	for i, f := range p.doc.Files {
		p.out[i], roots[i] = file{Name: f.Name, Size: f.Size}, newRoot(f.Size)
	}
	var w *work
	for c := range p.chunks {
		if err := wait(p.ctx, c.done); err != nil {
			return err
		}
		if c.err != nil {
			return c.err
		}
		out := &p.out[c.file]
		for i := range len(c.data) / pageSize {
			at := place{pack: zeros}
			h := c.hashes[i]
			roots[c.file].add(h)
			if !c.zero[i] {
				var known bool
				if at, known = p.index[h]; !known {
					var err error
					if w, at, err = p.add(w, c.data[i*pageSize:][:pageSize], h); err != nil {
						return err
					}
				}
			}
			out.extents = appendExtent(out.extents, c.number*(snapshot.ChunkSize/pageSize)+int64(i), at.pack, at.slot)
		}
		p.done.Add(min(snapshot.ChunkSize, out.Size-c.number*snapshot.ChunkSize))
		p.report()
		p.bufs.Put(c)
	}
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	for i := range roots {
		p.out[i].Root = roots[i].sum()
	}
	if w != nil {
		w.last = true
		return p.submit(w)
	}
	return nil
}

// add puts a new page into the frame that is being filled, w, and gives the next one when that is full.
func (p *pass) add(w *work, page []byte, h pageHash) (*work, place, error) {
	if w != nil && len(w.pages) == frameSize {
		w.last = w.number == packFrames-1
		pack, number := w.pack, w.number+1
		if w.last {
			pack, number = nil, 0
		}
		if err := p.submit(w); err != nil { // from here on it may be used for another frame
			return nil, place{}, err
		}
		w = p.frame(pack, number)
	} else if w == nil {
		w = p.frame(nil, 0)
	}
	at := place{pack: int32(len(p.upload.packs) - 1), slot: int32(w.pack.Pages)}
	w.pages = append(w.pages, page...)
	w.pack.Pages++
	w.pack.hashes = append(w.pack.hashes, h)
	p.index[h] = at
	return w, at, nil
}

// frame begins one, in a new pack where none is given.
func (p *pass) frame(in *sendPack, number uint32) *work {
	w := p.works.Get().(*work)
	w.pack, w.number, w.last = in, number, false
	w.pages, w.done = w.pages[:0], make(chan struct{})
	if in == nil {
		o := newObject(p.keys, p.name(packKind))
		w.pack = &sendPack{own: true, object: o}
		w.pack.Name, w.pack.Salt = o.name.String(), hex.EncodeToString(o.salt())
		p.upload.packs = append(p.upload.packs, w.pack)
	}
	return w
}

func (u *upload) name(k kind) objectName {
	n := objectName{kind: k, epoch: u.epoch, sequence: u.doc.Sequence, op: u.op, number: u.next}
	u.next++
	return n
}

func (p *pass) submit(w *work) error {
	if err := send(p.ctx, p.frames, w); err != nil {
		return err
	}
	return send(p.ctx, p.jobs, func(*worker) {
		w.plain = p.l.t.codec.encode(w.plain[:0], w.pages)
		w.stored = w.pack.object.seal(w.stored[:0], w.plain, w.number, false)
		close(w.done)
	})
}

// assemble puts frames together and hands whole packs over to be sent.
func (p *pass) assemble() error {
	var buf *[]byte
	var sum hash.Hash
	for w := range p.frames {
		if err := wait(p.ctx, w.done); err != nil {
			return err
		}
		if w.number == 0 {
			select {
			case buf = <-p.packs:
			case <-p.ctx.Done():
				return context.Cause(p.ctx)
			}
			*buf = append((*buf)[:0], w.pack.object.header[:]...)
			sum = sha256.New()
			sum.Write(*buf)
		}
		*buf = append(*buf, w.stored...)
		sum.Write(w.stored)
		w.pack.Frames = append(w.pack.Frames, len(w.stored))
		if w.last {
			if err := p.finish(w.pack, buf, sum); err != nil {
				return err
			}
		}
		p.works.Put(w)
	}
	return nil
}

// finish adds the hashes to a pack and sends it.
func (p *pass) finish(k *sendPack, buf *[]byte, sum hash.Hash) error {
	plain := make([]byte, 1, k.indexLength())
	plain[0] = hashFrame
	for _, h := range k.hashes {
		plain = append(plain, h[:]...)
	}
	at := len(*buf)
	*buf = k.object.seal(*buf, plain, uint32(len(k.Frames)), true)
	sum.Write((*buf)[at:])
	k.Size, k.SHA256 = int64(len(*buf)), hex.EncodeToString(sum.Sum(nil))
	k.object = nil
	if err := p.reserve(k.Size); err != nil {
		return err
	}
	p.group.Go(func() error {
		clean, err := p.put(p.ctx, k.Name, *buf)
		if err != nil {
			return err
		}
		if !clean {
			buf = new([]byte)
		}
		p.packs <- buf
		return nil
	})
	return nil
}

// reserve counts what is going to be sent. ErrLimit when that would be too much.
func (u *upload) reserve(n int64) error {
	if u.reserved += n; u.limit > 0 && u.reserved > u.limit {
		return fmt.Errorf("%w: %d bytes", ErrLimit, u.limit)
	}
	return nil
}

// putTries is how often an object is sent: with pauses of about 0.2, 0.4, 0.8 … seconds, half a minute in all.
const putTries = 8

// put creates an object of ours. No name is used twice, so sending it again is safe, and that it is there already can only be
// an earlier request of this call. clean: nothing reads body any more.
func (l *Lineage) put(ctx context.Context, name string, body []byte) (clean bool, err error) {
	name, clean = l.data(name), true
	for try := 1; ; try++ {
		_, err = l.t.cfg.Store.Put(ctx, name, body, store.Condition{Absent: true})
		if err == nil {
			break
		}
		clean = false
		if errors.Is(err, store.ErrExists) {
			info, serr := l.t.cfg.Store.Stat(ctx, name)
			if serr == nil && info.Size == int64(len(body)) {
				break
			}
			if err = serr; serr == nil {
				return false, corrupt(name, "it was just written with %d bytes and has %d", len(body), info.Size)
			}
		}
		if !errors.Is(err, store.ErrUnavailable) || try == putTries {
			return false, fmt.Errorf("write (tried %d times): %w", try, err)
		}
		if perr := l.t.pause(ctx, 100*time.Millisecond<<try); perr != nil {
			return false, errors.Join(err, perr)
		}
	}
	return clean, nil
}

// put counts what is sent.
func (u *upload) put(ctx context.Context, name string, body []byte) (clean bool, err error) {
	if clean, err = u.l.put(ctx, name, body); err == nil {
		u.sent.Add(int64(len(body)))
		u.unpaid.Add(int64(len(body)))
		u.report()
	}
	return clean, err
}

func (l *Lineage) data(name string) string { return dataPrefix + l.name + "/" + name }

func (u *upload) report() {
	if u.tell != nil {
		u.tell(Progress{Image: imageSize(u.doc), Done: u.done.Load(), Moved: u.sent.Load()})
	}
}

func imageSize(doc snapshot.Manifest) (n int64) {
	for _, f := range doc.Files {
		n += f.Size
	}
	return n
}

// learn takes in which pages the packs of a manifest have. A pack whose hashes can't be read, because it is gone or not what
// was written, is not relied on, and told in the result.
func (u *upload) learn(ctx context.Context, m *manifest) (skipped []string, err error) {
	base := len(u.packs)
	for _, p := range m.Packs {
		u.packs = append(u.packs, &sendPack{pack: p})
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(u.l.t.cfg.Downloads)
	for _, p := range u.packs[base:] {
		g.Go(func() (err error) {
			p.hashes, err = u.l.packHashes(gctx, u.keys, &p.pack)
			if damaged(err) {
				p.dropped, err = true, nil
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	for i, p := range u.packs[base:] {
		if p.dropped {
			skipped = append(skipped, p.Name)
		}
		for slot, h := range p.hashes {
			u.index[h] = place{int32(base + i), int32(slot)}
		}
	}
	return skipped, nil
}

// damaged is true of errors that say that an object is not there, or not what was written.
func damaged(err error) bool {
	return errors.Is(err, store.ErrNotFound) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, snapshot.ErrCorrupt) || errors.Is(err, ErrForeign)
}

// packHashes reads the hashes at a pack's end.
func (l *Lineage) packHashes(ctx context.Context, k *keys, p *pack) ([]pageHash, error) {
	offsets := p.offsets()
	data, err := l.t.cfg.Store.GetRange(ctx, l.data(p.Name), offsets[len(p.Frames)], int64(p.indexLength()))
	if err != nil {
		return nil, fmt.Errorf("read the hashes of %s: %w", p.Name, err)
	}
	return decodeHashes(p, p.object(k), data)
}

func decodeHashes(p *pack, o *sealed, data []byte) ([]pageHash, error) {
	plain, err := o.open(data, uint32(len(p.Frames)), true)
	if err != nil {
		return nil, err
	}
	const size = len(pageHash{})
	if len(plain) != 1+size*p.Pages || plain[0] != hashFrame {
		return nil, corrupt(p.Name, "%d bytes of hashes of %d pages", len(plain), p.Pages)
	}
	out := make([]pageHash, p.Pages)
	for i := range out {
		out[i] = pageHash(plain[1+size*i:])
	}
	return out, nil
}

// drop stops relying on the packs that are gone, or may be, and tells whether the last pass did.
func (u *upload) drop(gone func(*sendPack) bool) (used bool) {
	for i, p := range u.packs {
		if p.dropped || !gone(p) {
			continue
		}
		p.dropped = true
		for _, h := range p.hashes {
			if at := u.index[h]; at.pack == int32(i) {
				delete(u.index, h)
			}
		}
		for _, f := range u.out {
			for _, e := range f.extents {
				used = used || e.pack == int32(i)
			}
		}
	}
	return used
}

// manifest is that of the last pass, with the packs that it uses.
func (u *upload) manifest(name string, document []byte) *manifest {
	m := &manifest{
		Name: name, Lineage: u.keys.lineage.String(), Sequence: u.doc.Sequence, Epoch: u.epoch,
		Created: u.doc.Created, document: document,
	}
	numbers := make(map[int32]int32)
	for _, f := range u.out {
		f.extents = append([]extent(nil), f.extents...)
		for i, e := range f.extents {
			if e.pack == zeros {
				continue
			}
			n, known := numbers[e.pack]
			if !known {
				n = int32(len(m.Packs))
				numbers[e.pack] = n
				m.Packs = append(m.Packs, u.packs[e.pack].pack)
			}
			f.extents[i].pack = n
		}
		m.Files = append(m.Files, f)
	}
	return m
}

// relies is true when a manifest names packs that are not the upload's own.
func (u *upload) relies(m *manifest) bool {
	own := make(map[string]bool)
	for _, p := range u.packs {
		own[p.Name] = p.own
	}
	return slices.ContainsFunc(m.Packs, func(p pack) bool { return !own[p.Name] })
}

// fetch is how many bytes a restore reads, the manifest left out.
func (m *manifest) fetch() (n int64) {
	for i, needed := range m.neededFrames() {
		for f, need := range needed {
			if need {
				n += int64(m.Packs[i].Frames[f])
			}
		}
	}
	return n
}

// neededFrames of each pack.
func (m *manifest) neededFrames() [][]bool {
	out := make([][]bool, len(m.Packs))
	for i, p := range m.Packs {
		out[i] = make([]bool, len(p.Frames))
	}
	for _, f := range m.Files {
		for _, e := range f.extents {
			if e.pack == zeros {
				continue
			}
			for n := e.slot / framePages; n <= (e.slot+int32(e.count)-1)/framePages; n++ {
				out[e.pack][n] = true
			}
		}
	}
	return out
}
