package gofer

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

const mib = 1 << 20

// What is asked for in turn is told apart from what somebody waits for, also where memory is freed before its turn.
func TestOutOfTurn(t *testing.T) {
	for what, c := range map[string]struct{ reads, want []stretch }{
		"nothing":      {nil, nil},
		"all in turn":  {[]stretch{{0, mib}, {mib, mib}, {2 * mib, 10}}, nil},
		"a fault":      {[]stretch{{0, mib}, {5 * mib, 4096}, {mib, 4 * mib}, {5*mib + 4096, mib}}, []stretch{{5 * mib, 4096}}},
		"a large one":  {[]stretch{{0, mib}, {5 * mib, mib}, {6 * mib, mib}, {mib, 4 * mib}}, []stretch{{5 * mib, 2 * mib}}},
		"two in order": {[]stretch{{0, mib}, {7 * mib, 1}, {3 * mib, 1}, {mib, 2 * mib}, {3*mib + 1, mib}}, []stretch{{7 * mib, 1}, {3 * mib, 1}}},
		"freed":        {[]stretch{{0, mib}, {5 * mib, mib}, {6 * mib, mib}}, nil},
		"freed and a fault": {
			[]stretch{{0, mib}, {9 * mib, 1}, {5 * mib, mib}, {6 * mib, 3 * mib}}, []stretch{{9 * mib, 1}},
		},
	} {
		var r record
		for _, read := range c.reads {
			r.add(read.off, read.n)
		}
		if got := r.outOfTurn(); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", what, got, c.want)
		}
	}
}

// However reads that somebody waits for come between the others, exactly they are told, in their order.
func TestOutOfTurnOfAny(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		unread := make([]bool, 200) // pieces of 10 bytes
		for i := range unread {
			unread[i] = true
		}
		var got record
		var want []int64
		for next := 0; ; {
			for next < len(unread) && !unread[next] {
				next++
			}
			if next == len(unread) {
				break
			}
			at := next
			switch r.IntN(4) {
			case 0: // freed
				unread[next+r.IntN(len(unread)-next)] = false
				continue
			case 1:
				at = next + r.IntN(len(unread)-next)
			}
			if !unread[at] {
				continue
			}
			if at != next {
				want = append(want, int64(at))
			}
			unread[at] = false
			got.add(int64(at)*10, 10)
		}
		// What lies below such a read, and is freed before its turn, leaves the read in turn: nobody can tell then.
		told := map[int64]bool{}
		var order []int64
		for _, o := range got.outOfTurn() {
			for at := o.off; at < o.off+o.n; at += 10 {
				told[at/10] = true
				order = append(order, at/10)
			}
		}
		rest := want
		for _, at := range order {
			i := slices.Index(rest, at)
			if i < 0 {
				t.Fatalf("seed %d: piece %d is told, out of turn were %v", seed, at, want)
			}
			rest = rest[i+1:]
		}
		for _, at := range want {
			if lower := slices.ContainsFunc(got.runs, func(o stretch) bool { return o.off < at*10 && after(got.runs, o.off, at*10) }); lower && !told[at] {
				t.Fatalf("seed %d: piece %d is not told", seed, at)
			}
		}
	}
}

// after says whether the piece at lower was read after the one at upper.
func after(runs []stretch, lower, upper int64) bool {
	index := func(off int64) int {
		return slices.IndexFunc(runs, func(o stretch) bool { return o.off <= off && off < o.off+o.n })
	}
	return index(lower) > index(upper)
}

// What is kept and what is told have an end.
func TestRecordIsBounded(t *testing.T) {
	var r record
	r.add(0, 1)
	for i := int64(0); i < 3*maxRuns; i++ {
		r.add((3*maxRuns-i)*2*mib, mib+mib/2)
	}
	if len(r.runs) > maxRuns {
		t.Errorf("%d runs are kept", len(r.runs))
	}
	var bytes int64
	for _, o := range r.outOfTurn() {
		bytes += o.n
	}
	if bytes != maxTouchedBytes {
		t.Errorf("%d bytes are told, want %d", bytes, int64(maxTouchedBytes))
	}
	r = record{}
	for i := int64(0); i < 2*maxTouches; i++ {
		r.add((2*maxTouches-i)*2, 1)
	}
	if n := len(r.outOfTurn()); n != maxTouches {
		t.Errorf("%d are told, want %d", n, maxTouches)
	}
}

func TestRecordFile(t *testing.T) {
	var r record
	for _, o := range []stretch{{0, 10}, {100, 10}, {50, 20}, {10, 40}} {
		r.add(o.off, o.n)
	}
	path := filepath.Join(t.TempDir(), "touched")
	if err := r.write(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "[[100,10],[50,20]]" {
		t.Errorf("%s, %v", got, err)
	}
	if err := (&record{}).write(path); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "[]" {
		t.Errorf("of nothing: %s, %v", got, err)
	}
}
