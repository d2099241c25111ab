package main

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/open"
)

// storeEnv makes a process of this program do a storeTask, given as JSON, in the world's network.
const storeEnv = "HIBERNATE_BENCH_STORE"

// A storeTask is what is measured beside an upload or a restore.
type storeTask struct {
	URL, Key string
	Pages    string // a file whose first part is compressed, and decoded again
	Workers  int    // for that
	Restore  string // name of a lineage whose newest snapshot is restored
	Dir      string // into this one, which is there
}

// storeRates are rates in bytes a second.
type storeRates struct {
	Put, Get     float64 // of objects, by two and eight requests at a time
	Zstd, Decode float64 // of an image: Decode decrypts, too, on all cores
	Restore      float64 // of an image, into files
	Image, Fetch float64 // bytes of the snapshot that was restored, and that were read for it
}

func runStoreTask(ctx context.Context, b *bench, in *thread, self string, t storeTask) (r storeRates, err error) {
	text, err := json.Marshal(t)
	if err != nil {
		return r, err
	}
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), storeEnv+"="+string(text))
	cmd.Stdout, cmd.Stderr = &out, &errs
	b.world.Adopt(cmd)
	in.do(func() { err = cmd.Start() })
	if err == nil {
		err = cmd.Wait()
	}
	if err != nil {
		return r, fmt.Errorf("rates of the store: %w: %s", err, &errs)
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

// beStore is a process of its own.
func beStore(text string) int {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var t storeTask
	err := json.Unmarshal([]byte(text), &t)
	var r storeRates
	if err == nil {
		r, err = t.run(ctx)
	}
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (t storeTask) run(ctx context.Context) (r storeRates, err error) {
	s, err := open.URL(t.URL)
	if err != nil {
		return r, err
	}
	defer s.Close()
	if t.Pages != "" {
		if err := t.codec(&r); err != nil {
			return r, err
		}
	}
	if t.Restore != "" {
		if err := t.restore(ctx, s, &r); err != nil {
			return r, err
		}
	}
	return r, moveObjects(ctx, s, &r)
}

const (
	ratesPack   = 12 << 20
	ratesPacks  = 24
	ratesRange  = 4 << 20
	ratesSample = 256 << 20
	ratesFrame  = 256 << 10
)

// moveObjects writes and reads objects as uploads and restores do.
func moveObjects(ctx context.Context, s store.Store, r *storeRates) error {
	body := make([]byte, ratesPack)
	random := rand.NewChaCha8([32]byte{1})
	_, _ = random.Read(body)
	name := func(i int) string { return fmt.Sprint("rates/", i) }
	each := func(limit, n int, do func(context.Context, int) error) (float64, error) {
		g, ctx := errgroup.WithContext(ctx)
		g.SetLimit(limit)
		began := time.Now()
		for i := range n {
			g.Go(func() error { return do(ctx, i) })
		}
		err := g.Wait()
		return time.Since(began).Seconds(), err
	}
	took, err := each(2, ratesPacks, func(ctx context.Context, i int) error {
		_, err := s.Put(ctx, name(i), body, store.Always)
		return err
	})
	if err != nil {
		return err
	}
	r.Put = ratesPacks * ratesPack / took
	const ranges = ratesPack / ratesRange
	took, err = each(8, ratesPacks*ranges, func(ctx context.Context, i int) error {
		_, err := s.GetRange(ctx, name(i/ranges), int64(i%ranges)*ratesRange, ratesRange)
		return err
	})
	if err != nil {
		return err
	}
	r.Get = ratesPacks * ratesPack / took
	for i := range ratesPacks {
		err = errors.Join(err, s.Delete(ctx, name(i)))
	}
	return err
}

// codec compresses the pages of an image in frames, and decrypts and decodes them.
func (t storeTask) codec(r *storeRates) error {
	f, err := os.Open(t.Pages)
	if err != nil {
		return err
	}
	defer f.Close()
	pages, err := io.ReadAll(io.LimitReader(f, ratesSample))
	if err != nil {
		return err
	}
	enc, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(t.Workers))
	if err != nil {
		return err
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(0))
	if err != nil {
		return err
	}
	block, err := aes.NewCipher(make([]byte, 32))
	if err != nil {
		return err
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		return err
	}
	frames := slices.Collect(slices.Chunk(pages, ratesFrame))
	packed := make([][]byte, len(frames))
	took := together(t.Workers, len(frames), func(i int) { packed[i] = enc.EncodeAll(frames[i], make([]byte, 0, ratesFrame+1024)) })
	r.Zstd = float64(len(pages)) / took.Seconds()
	nonce := make([]byte, gcm.NonceSize())
	for i := range packed {
		packed[i] = gcm.Seal(nil, nonce, packed[i], nil)
	}
	buffers := make(chan []byte, runtime.GOMAXPROCS(0))
	for range cap(buffers) {
		buffers <- make([]byte, 0, ratesFrame)
	}
	var failed atomic.Value
	took = together(cap(buffers), len(packed), func(i int) {
		buf := <-buffers
		plain, err := gcm.Open(packed[i][:0], nonce, packed[i], nil)
		if err == nil {
			_, err = dec.DecodeAll(plain, buf)
		}
		if err != nil {
			failed.Store(err)
		}
		buffers <- buf
	})
	r.Decode = float64(len(pages)) / took.Seconds()
	err, _ = failed.Load().(error)
	return err
}

// together calls do for each of n, on so many goroutines, and says how long that took.
func together(workers, n int, do func(i int)) time.Duration {
	began := time.Now()
	var next atomic.Int64
	var g errgroup.Group
	for range workers {
		g.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				do(i)
			}
			return nil
		})
	}
	_ = g.Wait()
	return time.Since(began)
}

func (t storeTask) restore(ctx context.Context, s store.Store, r *storeRates) error {
	key, err := durable.KeyFile(t.Key)
	if err != nil {
		return err
	}
	// The store's names have a prefix, which the URL has said.
	tier, err := durable.New(durable.Config{Store: s, Keys: durable.Keyring{Current: key}, Node: "bench"})
	if err != nil {
		return err
	}
	l, err := tier.Lineage(t.Restore)
	if err != nil {
		return err
	}
	began := time.Now()
	reader, err := l.Open(ctx, 0, durable.OpenOptions{Lease: true})
	if err != nil {
		return err
	}
	defer reader.Close()
	if err := reader.Restore(ctx, t.Dir, nil); err != nil {
		return err
	}
	took := time.Since(began)
	g := reader.Generation()
	r.Image, r.Fetch = float64(g.Image), float64(g.Fetch)
	r.Restore = r.Image / took.Seconds()
	files, err := filepath.Glob(filepath.Join(t.Dir, "*"))
	for _, path := range files {
		if !strings.HasSuffix(path, string(filepath.Separator)) {
			err = errors.Join(err, os.Remove(path))
		}
	}
	return err
}
