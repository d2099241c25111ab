package store_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// The contract holds through all decorators together.
func TestDecoratedContract(t *testing.T) {
	buckets := map[*testing.T]*memstore.Bucket{}
	storetest.Run(t, storetest.Kind{Open: func(t *testing.T) store.Store {
		if buckets[t] == nil {
			buckets[t] = memstore.NewBucket()
		}
		limited := store.Limited(buckets[t].Store(), store.Limits{Writes: 2, Reads: 2, Upload: 10 << 30, Recall: 10 << 30})
		return store.Observed(store.Retried(limited, store.Patience{}), func(store.Op) func(int64, error) { return func(int64, error) {} })
	}})
}

// operations are all of them, on an object that is there.
func operations(s store.Store) map[memstore.Op]func(context.Context) error {
	return map[memstore.Op]func(context.Context) error{
		memstore.Put:      func(ctx context.Context) error { _, err := s.Put(ctx, "x", []byte("xyz"), store.Always); return err },
		memstore.Get:      func(ctx context.Context) error { _, _, err := s.Get(ctx, "x", 100); return err },
		memstore.GetRange: func(ctx context.Context) error { _, err := s.GetRange(ctx, "x", 0, 2); return err },
		memstore.Stat:     func(ctx context.Context) error { _, err := s.Stat(ctx, "x"); return err },
		memstore.List:     func(ctx context.Context) error { _, _, err := s.List(ctx, ""); return err },
		memstore.Delete:   func(ctx context.Context) error { return s.Delete(ctx, "other") },
	}
}

// withObject is a store with an object x.
func withObject(t *testing.T) *memstore.Store {
	t.Helper()
	s := memstore.New()
	if _, err := s.Put(t.Context(), "x", []byte("xyz"), store.Always); err != nil {
		t.Fatal(err)
	}
	return s
}

// failing makes the first calls fail with err, and counts all.
func failing(s *memstore.Store, err error, times int) *atomic.Int64 {
	var n atomic.Int64
	s.Before(func(memstore.Op, string) memstore.Fault {
		if n.Add(1) > int64(times) {
			return memstore.Fault{}
		}
		return memstore.Fault{Kind: memstore.Fail, Err: err}
	})
	return &n
}

func TestRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withObject(t)
		for op, do := range operations(store.Retried(s, store.Patience{})) {
			for _, c := range []struct {
				err          error
				times, calls int
				ok           bool
			}{
				{store.ErrUnavailable, 3, 4, true},
				{store.ErrUnavailable, 100, 4, false},
				{store.ErrRefused, 100, 1, false},
				{store.ErrNotFound, 100, 1, false},
				{errors.New("something"), 100, 1, false},
			} {
				n := failing(s, c.err, c.times)
				began := time.Now()
				err := do(t.Context())
				if (err == nil) != c.ok || (err != nil && !errors.Is(err, c.err)) || n.Load() != int64(c.calls) {
					t.Errorf("%s, %v %d times: called %d times, %v; want %d, success %v", op, c.err, c.times, n.Load(), err, c.calls, c.ok)
				}
				// 200, 400 and 800 ms, each from half to one and a half.
				if took := time.Since(began); c.calls == 4 && (took < 700*time.Millisecond || took > 2100*time.Millisecond) || c.calls == 1 && took != 0 {
					t.Errorf("%s, %v: %d calls within %s", op, c.err, c.calls, took)
				}
			}
		}
	})
}

// A write with a condition whose answer was lost must not be told "exists" of its own bytes.
func TestConditionalPutsAreNotRetried(t *testing.T) {
	s := memstore.New()
	retried := store.Retried(s, store.Patience{})
	s.Script(memstore.Fault{Op: memstore.Put, Kind: memstore.LoseAnswer, Times: 2})
	_, err := retried.Put(t.Context(), "x", []byte("mine"), store.Condition{Absent: true})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrExists) {
		t.Errorf("put where nothing is: %v; want it unknown", err)
	}
	_, info, err := retried.Get(t.Context(), "x", 100)
	if err != nil {
		t.Fatal(err)
	}
	_, err = retried.Put(t.Context(), "x", []byte("mine, too"), store.Condition{Version: info.Version})
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrChanged) {
		t.Errorf("put over a version: %v; want it unknown", err)
	}
}

func TestRetryingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withObject(t)
		failing(s, store.ErrUnavailable, 1000)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		began := time.Now()
		_, _, err := store.Retried(s, store.Patience{Tries: 1000}).Get(ctx, "x", 100)
		if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, store.ErrUnavailable) || took != time.Minute {
			t.Errorf("%v after %s; want both what was wrong and %v, after a minute", err, took, context.DeadlineExceeded)
		}
	})
}

func TestNoMoreAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := withObject(t)
		var now, most [2]atomic.Int64 // reads, writes
		held := make(chan struct{})
		s.Before(func(op memstore.Op, _ string) memstore.Fault {
			kind := 0
			if op == memstore.Put || op == memstore.Delete {
				kind = 1
			}
			if n := now[kind].Add(1); n > most[kind].Load() {
				most[kind].Store(n)
			}
			<-held
			now[kind].Add(-1)
			return memstore.Fault{}
		})
		limited := store.Limited(s, store.Limits{Reads: 3, Writes: 2})
		var all sync.WaitGroup
		for range 5 {
			for op, do := range operations(limited) {
				all.Go(func() {
					if err := do(t.Context()); err != nil {
						t.Error(op, err)
					}
				})
			}
		}
		synctest.Wait()
		if r, w := now[0].Load(), now[1].Load(); r != 3 || w != 2 {
			t.Errorf("%d reads and %d writes go on; want 3 and 2", r, w)
		}
		// One that waits leaves with its context.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		for op, do := range operations(limited) {
			if err := do(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v; want %v", op, err, context.DeadlineExceeded)
			}
		}
		close(held)
		all.Wait()
		if r, w := most[0].Load(), most[1].Load(); r != 3 || w != 2 {
			t.Errorf("at most %d reads and %d writes went on at once; want 3 and 2", r, w)
		}
	})
}

func TestRates(t *testing.T) {
	const rate, size, n = 1 << 20, 256 << 10, 9 // the first goes at once, 8 wait: 2 s
	body := bytes.Repeat([]byte("x"), size)
	for what, c := range map[string]struct {
		limits store.Limits
		do     func(s store.Store, i int) error
		want   time.Duration
	}{
		"put": {store.Limits{Upload: rate}, func(s store.Store, i int) error {
			_, err := s.Put(context.Background(), fmt.Sprint(i), body, store.Always)
			return err
		}, 2 * time.Second},
		"get":      {store.Limits{Recall: rate}, func(s store.Store, _ int) error { _, _, err := s.Get(context.Background(), "x", size); return err }, 2 * time.Second},
		"range":    {store.Limits{Recall: rate}, func(s store.Store, _ int) error { _, err := s.GetRange(context.Background(), "x", 0, size); return err }, 2 * time.Second},
		"others":   {store.Limits{Recall: 1, Upload: 1}, func(s store.Store, _ int) error { _, err := s.Stat(context.Background(), "x"); return err }, 0},
		"no limit": {store.Limits{}, func(s store.Store, _ int) error { _, _, err := s.Get(context.Background(), "x", size); return err }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New()
			if _, err := s.Put(t.Context(), "x", body, store.Always); err != nil {
				t.Fatal(err)
			}
			limited := store.Limited(s, c.limits)
			began := time.Now()
			for i := range n {
				if err := c.do(limited, i); err != nil {
					t.Fatal(err)
				}
			}
			if took := time.Since(began); (took - c.want).Abs() > time.Millisecond {
				t.Errorf("%s: %d of %d bytes at %d a second took %s; want %s", what, n, size, rate, took, c.want)
			}
		})
	}
}

// Who gives up waiting takes none of what the others may send.
func TestGivingUpCostsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limited := store.Limited(memstore.New(), store.Limits{Upload: 1000})
		put := func(ctx context.Context, n int) error {
			_, err := limited.Put(ctx, "x", make([]byte, n), store.Always)
			return err
		}
		if err := put(t.Context(), 1000); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := put(ctx, 1_000_000); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v; want %v", err, context.DeadlineExceeded)
		}
		began := time.Now()
		if err := put(t.Context(), 1); err != nil || time.Since(began) > time.Second {
			t.Errorf("%v after %s; want it within the second that the first one costs", err, time.Since(began))
		}
	})
}

func TestObserved(t *testing.T) {
	s := withObject(t)
	type seen struct {
		op    store.Op
		bytes int64
		err   error
	}
	var last seen
	var running int
	observed := store.Observed(s, func(op store.Op) func(int64, error) {
		running++
		return func(bytes int64, err error) {
			running--
			last = seen{op, bytes, err}
		}
	})
	bytes := map[memstore.Op]int64{memstore.Put: 3, memstore.Get: 3, memstore.GetRange: 2}
	for op, do := range operations(observed) {
		if err := do(t.Context()); err != nil || last != (seen{store.Op(op), bytes[op], nil}) || running != 0 {
			t.Errorf("%s: %v; observed %+v, and %d that still run", op, err, last, running)
		}
		s.Script(memstore.Fault{Kind: memstore.Fail})
		if err := do(t.Context()); err == nil || last.err != err || last.op != store.Op(op) || last.bytes != 0 || running != 0 {
			t.Errorf("%s: %v; observed %+v, and %d that still run", op, err, last, running)
		}
	}
	if len(store.Ops) != len(operations(observed)) {
		t.Errorf("Ops has %d; want all %d", len(store.Ops), len(operations(observed)))
	}
}
