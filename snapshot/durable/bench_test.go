package durable

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// heap is n pages as they are in checkpoints of interpreters: pointers into a heap, text, code, and some that nothing makes
// smaller. zstd takes it to about 0.35 of its size.
func heap(n int) []byte {
	out := make([]byte, n*pageSize)
	r := rand.New(rand.NewPCG(1, 2))
	words := []string{"return", " self", ".value", "\n    ", "import ", "None", " = ", "(", ")", "lambda ", "dict", ", ", "for ", "in range", "0x7f"}
	for page := range slices.Chunk(out, pageSize) {
		switch k := r.IntN(100); {
		case k < 55: // objects: counts, types, pointers
			for i := 0; i < pageSize; i += 32 {
				binary.LittleEndian.PutUint64(page[i:], uint64(1+r.IntN(3)))
				binary.LittleEndian.PutUint64(page[i+8:], 0x7f1200400000+uint64(r.IntN(40))*0x1a0)
				binary.LittleEndian.PutUint64(page[i+16:], 0x7f1234000000+uint64(r.IntN(1<<18))*16)
			}
		case k < 85:
			for i := 0; i < pageSize; {
				i += copy(page[i:], words[r.IntN(len(words))])
			}
		default:
			for i := 0; i < pageSize; i += 8 {
				binary.LittleEndian.PutUint64(page[i:], r.Uint64())
			}
		}
	}
	return out
}

const benchPages = 32768 // 128 MiB

// parallel calls do for each of n, on all cores, and says how long that took.
func parallel(n int, do func(i int)) time.Duration {
	began := time.Now()
	var next atomic.Int64
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
		})
	}
	wg.Wait()
	return time.Since(began)
}

func rate(bytes int, d time.Duration) float64 { return float64(bytes) / 1e6 / d.Seconds() }

// BenchmarkUpload uploads an image for the first time, beside zstd's own rate on all cores; and then once more, idle.
func BenchmarkUpload(b *testing.B) {
	pages := heap(benchPages)
	w := newWorld(b)
	c, err := newCodec()
	if err != nil {
		b.Fatal(err)
	}
	var first, idle, own time.Duration
	var sent, again int64
	for b.Loop() {
		frames := slices.Collect(slices.Chunk(pages, frameSize))
		bufs := sync.Pool{New: func() any { return new([2 * frameSize]byte) }}
		own += parallel(len(frames), func(i int) {
			buf := bufs.Get().(*[2 * frameSize]byte)
			c.enc.EncodeAll(frames[i], buf[:0])
			bufs.Put(buf)
		})
		w.bucket = newWorld(b).bucket
		n := w.owner("a")
		im := w.image(1, 1, content{"pages.img": pages})
		began := time.Now()
		sent = n.commit(b, im).Generation.Sent
		first += time.Since(began)
		im = w.image(1, 2, content{"pages.img": pages})
		began = time.Now()
		again = n.commit(b, im).Generation.Sent
		idle += time.Since(began)
	}
	size := len(pages) * b.N
	b.ReportMetric(rate(size, own), "zstd-MB/s")
	b.ReportMetric(rate(size, first), "first-MB/s")
	b.ReportMetric(own.Seconds()/first.Seconds(), "first/zstd")
	b.ReportMetric(rate(size, idle), "idle-MB/s")
	b.ReportMetric(float64(sent)/float64(len(pages)), "first-share")
	b.ReportMetric(float64(again)/float64(len(pages)), "idle-share")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkRestore restores an image to files, and reads it in pieces of 1 MiB as a wake does, beside what decrypting and decoding
// alone takes on all cores.
func BenchmarkRestore(b *testing.B) {
	pages := heap(benchPages)
	w := newWorld(b)
	n := w.owner("a")
	n.commit(b, w.image(1, 1, content{"pages.img": pages}))
	var own, restore, read time.Duration
	for b.Loop() {
		r, err := n.Open(b.Context(), 1, OpenOptions{})
		if err != nil {
			b.Fatal(err)
		}
		type frame struct {
			pack, number int
			stored       []byte
		}
		var frames []frame
		for i, p := range r.packs {
			body := w.bucket.Body(full(p.Name))
			for k := range p.Frames {
				frames = append(frames, frame{i, k, body[p.offsets[k]:p.offsets[k+1]]})
			}
		}
		bufs := sync.Pool{New: func() any { return new([frameSize]byte) }}
		own += parallel(len(frames), func(i int) {
			buf := bufs.Get().(*[frameSize]byte)
			if _, err := r.decode(b.Context(), buf, &r.packs[frames[i].pack], frames[i].number, frames[i].stored); err != nil {
				b.Error(err)
			}
			bufs.Put(buf)
		})
		dir := b.TempDir()
		began := time.Now()
		if err := r.Restore(b.Context(), dir, nil); err != nil {
			b.Fatal(err)
		}
		restore += time.Since(began)
		f, err := r.File("pages.img")
		if err != nil {
			b.Fatal(err)
		}
		const chunk = 1 << 20
		pieces := sync.Pool{New: func() any { return new([chunk]byte) }}
		read += parallel(len(pages)/chunk, func(i int) {
			p := pieces.Get().(*[chunk]byte)
			if _, err := f.ReadAt(p[:], int64(i)*chunk); err != nil {
				b.Error(err)
			}
			pieces.Put(p)
		})
		r.Close()
	}
	size := len(pages) * b.N
	b.ReportMetric(rate(size, own), "decode-MB/s")
	b.ReportMetric(rate(size, restore), "restore-MB/s")
	b.ReportMetric(own.Seconds()/restore.Seconds(), "restore/decode")
	b.ReportMetric(rate(size, read), "readat-MB/s")
	b.ReportMetric(own.Seconds()/read.Seconds(), "readat/decode")
	b.ReportMetric(0, "ns/op")
}

// distant is a store that answers each read a while later.
type distant struct {
	store.Store
	gets atomic.Int64
}

func (d *distant) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	d.gets.Add(1)
	if err := pause(ctx, 10*time.Millisecond); err != nil {
		return nil, err
	}
	return d.Store.GetRange(ctx, name, offset, length)
}

// BenchmarkDistant reads as a wake does, two pieces of 1 MiB at a time in order, from a store that is 10 ms away.
func BenchmarkDistant(b *testing.B) {
	pages := heap(benchPages / 2)
	w := newWorld(b)
	d := &distant{}
	n := w.owner("a", func(c *Config) { d.Store, c.Store = c.Store, d })
	n.commit(b, w.image(1, 1, content{"pages.img": pages}))
	var read time.Duration
	d.gets.Store(0)
	for b.Loop() {
		r, err := n.Open(b.Context(), 1, OpenOptions{})
		if err != nil {
			b.Fatal(err)
		}
		f, err := r.File("pages.img")
		if err != nil {
			b.Fatal(err)
		}
		read += parallel(len(pages)>>20, func(i int) {
			if _, err := f.ReadAt(make([]byte, 1<<20), int64(i)<<20); err != nil {
				b.Error(err)
			}
		})
		r.Close()
	}
	b.ReportMetric(rate(len(pages)*b.N, read), "MB/s")
	b.ReportMetric(float64(d.gets.Load())/float64(b.N), "requests")
	b.ReportMetric(0, "ns/op")
}
