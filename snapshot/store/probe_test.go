package store_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

func TestProbeFindsTheDishonest(t *testing.T) {
	for honesty, why := range map[memstore.Honesty]string{
		memstore.Honest:  "",
		memstore.Racy:    "wrote at once under the same condition writer",
		memstore.Ignores: "was done over an object",
	} {
		bucket := memstore.NewBucket()
		bucket.SetHonesty(honesty)
		report, err := store.Probe(t.Context(), bucket.Store(), "cluster/")
		if err != nil {
			t.Fatal(err)
		}
		if report.Honest != (why == "") || (report.Why == "") != (why == "") || !strings.Contains(report.Why, why) {
			t.Errorf("kind %d: found %+v; want %q", honesty, report, why)
		}
		if left := bucket.Names(); len(left) > 0 {
			t.Errorf("kind %d: %q is left", honesty, left)
		}
	}
}

// What could not be found out is no verdict, and neither is an answer that was lost to one of the writers.
func TestProbeOfAStoreThatFails(t *testing.T) {
	for what, c := range map[string]struct {
		fault memstore.Fault
		known bool
	}{
		"the list fails":             {memstore.Fault{Op: memstore.List, Kind: memstore.Fail}, false},
		"the first write fails":      {memstore.Fault{Op: memstore.Put, Kind: memstore.Fail}, false},
		"the first answer is lost":   {memstore.Fault{Op: memstore.Put, Kind: memstore.LoseAnswer}, false},
		"no answer comes":            {memstore.Fault{Op: memstore.Put, Kind: memstore.LoseAnswer, Skip: 5, Times: -1}, false},
		"all writers are refused":    {memstore.Fault{Op: memstore.Put, Kind: memstore.Fail, Err: store.ErrRefused, Skip: 5, Times: -1}, false},
		"one writer of a race fails": {memstore.Fault{Op: memstore.Put, Kind: memstore.Fail, Skip: 10}, true},
		"read back fails":            {memstore.Fault{Op: memstore.Get, Kind: memstore.Fail}, false},
	} {
		s := memstore.New()
		s.Script(c.fault)
		report, err := store.Probe(t.Context(), s, "")
		if (err == nil) != c.known || report.Honest != c.known || report.Why != "" {
			t.Errorf("%s: %+v, %v; want no verdict but where enough is known (%v)", what, report, err, c.known)
		}
		if left := s.Bucket().Names(); len(left) > 0 {
			t.Errorf("%s: %q is left", what, left)
		}
	}
}

// A store that loses what it said it has, or tells another's bytes.
func TestProbeReadsBack(t *testing.T) {
	s := memstore.New()
	s.Script(memstore.Fault{Op: memstore.Get, Kind: memstore.Flip})
	if report, err := store.Probe(t.Context(), s, ""); err != nil || report.Honest || !strings.Contains(report.Why, "is there") {
		t.Errorf("%+v, %v; want it to be dishonest", report, err)
	}
}

func TestProbeCleansUp(t *testing.T) {
	bucket := memstore.NewBucket()
	now := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	bucket.SetClock(func() time.Time { return now })
	s := bucket.Store()
	put := func(name string) {
		if _, err := s.Put(t.Context(), name, []byte("x"), store.Always); err != nil {
			t.Fatal(err)
		}
	}
	put("p/_probe/killed/alone")
	put("p/other")
	now = now.Add(2 * time.Hour)
	put("p/_probe/running/alone")
	// One whose context ends in the middle cleans up all the same.
	ctx, cancel := context.WithCancel(t.Context())
	s.Script(memstore.Fault{Op: memstore.Put, Skip: 20, Do: cancel})
	if _, err := store.Probe(ctx, s, "p/"); !errors.Is(err, context.Canceled) {
		t.Errorf("%v; want %v", err, context.Canceled)
	}
	if left, want := bucket.Names(), []string{"p/_probe/running/alone", "p/other"}; !slices.Equal(left, want) {
		t.Errorf("%q is left; want %q", left, want)
	}
}

func TestProbeTellsTheSkew(t *testing.T) {
	for _, skew := range []time.Duration{0, 7 * time.Minute, -time.Hour} {
		bucket := memstore.NewBucket()
		bucket.SetClock(func() time.Time { return time.Now().Add(skew) })
		report, err := store.Probe(t.Context(), bucket.Store(), "")
		if err != nil || (report.Skew-skew).Abs() > 2*time.Second {
			t.Errorf("clocks that differ by %s: %+v, %v", skew, report, err)
		}
	}
}
