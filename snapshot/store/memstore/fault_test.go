package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// filled is a bucket with ten objects of ten bytes, and a way to it.
func filled(t *testing.T) (*memstore.Bucket, *memstore.Store) {
	t.Helper()
	b := memstore.NewBucket()
	s := b.Store()
	for i := range 10 {
		if _, err := s.Put(t.Context(), fmt.Sprint("o/", i), []byte("0123456789"), store.Always); err != nil {
			t.Fatal(err)
		}
	}
	return b, s
}

func TestFaults(t *testing.T) {
	for what, c := range map[string]struct {
		fault memstore.Fault
		do    func(ctx context.Context, s store.Store) error
		want  error
		done  bool // whether the object o/x is there afterwards
	}{
		"put, lost":          {memstore.Fault{Op: memstore.Put, Kind: memstore.LoseAnswer}, putX, store.ErrUnavailable, true},
		"put, failed":        {memstore.Fault{Op: memstore.Put, Kind: memstore.Fail}, putX, store.ErrUnavailable, false},
		"put, refused":       {memstore.Fault{Op: memstore.Put, Kind: memstore.Fail, Err: store.ErrRefused}, putX, store.ErrRefused, false},
		"put, stalled":       {memstore.Fault{Op: memstore.Put, Kind: memstore.Stall}, putX, context.DeadlineExceeded, false},
		"put, stalled after": {memstore.Fault{Op: memstore.Put, Kind: memstore.StallAfter}, putX, context.DeadlineExceeded, true},
		"of another op":      {memstore.Fault{Op: memstore.Get, Kind: memstore.Fail}, putX, nil, true},
		"of another name":    {memstore.Fault{Name: "p/", Kind: memstore.Fail}, putX, nil, true},
		"of the next one":    {memstore.Fault{Skip: 1, Kind: memstore.Fail}, putX, nil, true},
		"of any":             {memstore.Fault{Kind: memstore.Fail}, putX, store.ErrUnavailable, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			b, s := filled(t)
			s.Script(c.fault)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := c.do(ctx, s); !errors.Is(err, c.want) {
				t.Errorf("%s: %v; want %v", what, err, c.want)
			}
			if got := b.Body("o/x") != nil; got != c.done {
				t.Errorf("%s: written %v; want %v", what, got, c.done)
			}
			// Another way to the bucket has no part in it.
			if err := c.do(t.Context(), b.Store()); err != nil {
				t.Errorf("%s: by another way: %v", what, err)
			}
		})
	}
}

func putX(ctx context.Context, s store.Store) error {
	_, err := s.Put(ctx, "o/x", []byte("x"), store.Always)
	return err
}

func TestSpoiledReads(t *testing.T) {
	_, s := filled(t)
	ctx := t.Context()
	s.Script(memstore.Fault{Op: memstore.Get, Kind: memstore.Flip}, memstore.Fault{Op: memstore.Get, Kind: memstore.Short})
	if body, info, err := s.Get(ctx, "o/1", 100); err != nil || string(body) == "0123456789" || len(body) != 10 || info.Size != 10 {
		t.Errorf("flipped: %q, %+v, %v", body, info, err)
	}
	if body, info, err := s.Get(ctx, "o/1", 100); err != nil || string(body) != "01234" || info.Size != 10 {
		t.Errorf("short: %q, %+v, %v", body, info, err)
	}
	s.Script(memstore.Fault{Op: memstore.GetRange, Kind: memstore.Flip}, memstore.Fault{Op: memstore.GetRange, Kind: memstore.Short, Times: 2})
	if body, err := s.GetRange(ctx, "o/1", 2, 3); err != nil || string(body) == "234" || len(body) != 3 {
		t.Errorf("flipped: %q, %v", body, err)
	}
	if body, err := s.GetRange(ctx, "o/1", 2, 3); err != nil || string(body) != "234" {
		t.Errorf("in the half that is there: %q, %v", body, err)
	}
	if body, err := s.GetRange(ctx, "o/1", 2, 4); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("past the half that is there: %q, %v", body, err)
	}
	s.Script(memstore.Fault{Op: memstore.List, Kind: memstore.Short}, memstore.Fault{Op: memstore.List, Kind: memstore.Fail})
	if found, _, err := s.List(ctx, ""); err != nil || len(found) != 5 {
		t.Errorf("a list that misses half: %d, %v", len(found), err)
	}
	if found, _, err := s.List(ctx, ""); err == nil || found != nil {
		t.Errorf("a list that fails: %d, %v", len(found), err)
	}
	if body, _, err := s.Get(ctx, "o/1", 100); err != nil || string(body) != "0123456789" {
		t.Errorf("the object itself: %q, %v", body, err)
	}
}

func TestRacingWriter(t *testing.T) {
	b, s := filled(t)
	info, err := s.Stat(t.Context(), "o/1")
	if err != nil {
		t.Fatal(err)
	}
	s.Script(memstore.Fault{Op: memstore.Put, Do: func() {
		b.Store().Put(context.Background(), "o/1", []byte("theirs"), store.Condition{Version: info.Version})
	}})
	if _, err := s.Put(t.Context(), "o/1", []byte("mine"), store.Condition{Version: info.Version}); !errors.Is(err, store.ErrChanged) {
		t.Errorf("%v; want %v", err, store.ErrChanged)
	}
	if got := string(b.Body("o/1")); got != "theirs" {
		t.Errorf("%q is there", got)
	}
}

func TestClockAndAlter(t *testing.T) {
	b, s := filled(t)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	b.SetClock(func() time.Time { return at })
	if _, err := s.Put(t.Context(), "o/1", []byte("x"), store.Always); err != nil {
		t.Fatal(err)
	}
	at = at.Add(time.Hour)
	b.Alter("o/1", func(body []byte) []byte { return append(body, '!') })
	b.Alter("o/2", func([]byte) []byte { return nil })
	found, began, err := s.List(t.Context(), "o/")
	if err != nil || !began.Equal(at.Truncate(time.Second)) || len(found) != 9 || !found[1].Modified.Equal(at.Add(-time.Hour).Truncate(time.Second)) || found[1].Size != 2 {
		t.Errorf("listed %+v at %v, %v", found, began, err)
	}
}

func TestHealAndBefore(t *testing.T) {
	_, s := filled(t)
	s.Script(memstore.Fault{Kind: memstore.Fail, Times: -1})
	for range 3 {
		if putX(t.Context(), s) == nil {
			t.Error("it fails for ever, and didn't")
		}
	}
	s.Heal()
	if err := putX(t.Context(), s); err != nil {
		t.Error(err)
	}
	s.Before(func(op memstore.Op, name string) memstore.Fault {
		if op == memstore.Put && name == "o/x" {
			return memstore.Fault{Kind: memstore.Fail, Err: store.ErrRefused}
		}
		return memstore.Fault{}
	})
	if err := putX(t.Context(), s); !errors.Is(err, store.ErrRefused) {
		t.Errorf("%v; want %v", err, store.ErrRefused)
	}
	if err := s.Delete(t.Context(), "o/x"); err != nil {
		t.Error(err)
	}
}
