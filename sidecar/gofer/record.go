package gofer

import (
	"cmp"
	"encoding/json"
	"os"
	"slices"
)

// Bounds of what is told of a load. The shim has the same.
const (
	maxTouches      = 4096
	maxTouchedBytes = 128 << 20
	// maxRuns bounds what is kept while it goes on, 24 bytes each. Later ones are left out.
	maxRuns = 1 << 14
)

// record keeps in which order a file's bytes were asked for. gVisor asks for each byte at most once: for what somebody waits for
// out of turn, and for the rest by rising offsets, without what was freed meanwhile. Whether a read was in turn is known only at
// the end, when it is known what was never asked for. It is used by one goroutine at a time.
type record struct{ runs []stretch }

// stretch is consecutive bytes that were asked for one after the other.
type stretch struct{ off, n int64 }

func (r *record) add(off, n int64) {
	if last := len(r.runs) - 1; last >= 0 && r.runs[last].off+r.runs[last].n == off {
		r.runs[last].n += n
		return
	}
	if len(r.runs) < maxRuns {
		r.runs = append(r.runs, stretch{off, n})
	}
}

// outOfTurn returns what was asked for before its turn, in that order and within the bounds.
func (r *record) outOfTurn() []stretch {
	rising := make([]int, len(r.runs)) // indices of runs
	for i := range rising {
		rising[i] = i
	}
	slices.SortFunc(rising, func(a, b int) int { return cmp.Compare(r.runs[a].off, r.runs[b].off) })
	asked := make([]bool, len(r.runs))
	var out []stretch
	var bytes int64
	for i, next := 0, 0; i < len(r.runs); i++ {
		for asked[rising[next]] {
			next++
		}
		asked[i] = true
		if rising[next] == i {
			continue
		}
		n := min(r.runs[i].n, maxTouchedBytes-bytes)
		if out, bytes = append(out, stretch{r.runs[i].off, n}), bytes+n; len(out) == maxTouches || bytes == maxTouchedBytes {
			break
		}
	}
	return out
}

// write leaves what was out of turn in a file, as [[offset, bytes], …]: all of it or nothing.
func (r *record) write(path string) error {
	all := [][2]int64{}
	for _, o := range r.outOfTurn() {
		all = append(all, [2]int64{o.off, o.n})
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".part", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".part", path)
}
