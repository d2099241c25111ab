package snapshot

import (
	"encoding/json"
	"math"
	"slices"
)

// Bounds of what is kept of a wake.
const (
	MaxTouched      = 4096
	MaxTouchedBytes = 128 << 20
)

// PageRun is pages of 4 KiB that follow each other.
type PageRun struct {
	Page  uint64 `json:"page"` // the first
	Count uint64 `json:"count"`
}

func (r PageRun) end() uint64 { return r.Page + r.Count }

// Touched are pages of pages.img in the order in which a sandbox asked for them out of turn, while its memory was loaded. The
// next one from the same memory will probably begin with the same.
type Touched []PageRun

// MemoryTouched are such pages of a sandbox's memory: they are the same in the next checkpoint, wherever that has them.
type MemoryTouched []PageRun

// UnmarshalJSON takes what isn't understood for nothing: it is a hint, without which the snapshot is as good.
func (t *Touched) UnmarshalJSON(data []byte) error {
	var runs []PageRun
	if json.Unmarshal(data, &runs) != nil {
		runs = nil
	}
	*t = runs
	return nil
}

// checked is t if it can be of a file of so many bytes, and no more than is ever kept; else nothing.
func (t Touched) checked(size int64) Touched {
	if len(t) > MaxTouched {
		return nil
	}
	pages := uint64(max(size, 0)+pageSize-1) / pageSize
	var sum uint64
	for _, r := range t {
		if r.Count == 0 || r.Count > pages || r.Page > pages-r.Count {
			return nil
		}
		if sum += r.Count; sum > MaxTouchedBytes/pageSize {
			return nil
		}
	}
	return t
}

// FirstTouched is the manifest's hint, if it can be one of its pages.img.
func (m Manifest) FirstTouched() Touched {
	for _, f := range m.Files {
		if f.Name == pagesFile {
			return m.Touched.checked(f.Size)
		}
	}
	return nil
}

// FirstChunks are the chunks of pages.img that FirstTouched lies in, in that order, each once.
func (m Manifest) FirstChunks() []int {
	const pages = ChunkSize / pageSize
	var out []int
	seen := map[uint64]bool{}
	for _, r := range m.FirstTouched() {
		for c := r.Page / pages; c*pages < r.end(); c++ {
			if !seen[c] {
				seen[c] = true
				out = append(out, int(c))
			}
		}
	}
	return out
}

// InMemory finds pages that a sandbox asked for first, when it was restored from the snapshot, in its memory; and after them
// those of the manifest's hint, so that a wake which told little takes nothing away. What lies in other memory files than the
// main one is left out.
func (s *Snapshot) InMemory(touched Touched) (MemoryTouched, error) {
	before := s.manifest.FirstTouched()
	if len(touched)+len(before) == 0 {
		return nil, nil
	}
	l, err := readLayout(s.ImageDir())
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(s.manifest.Files, func(f File) bool { return f.Name == pagesFile }); i >= 0 {
		touched = touched.checked(s.manifest.Files[i].Size)
	}
	return l.translate(once(slices.Concat(touched, before)), inImage, inMemory), nil
}

// Touched finds pages of a sandbox's memory in its new checkpoint, for Manifest.Touched.
func (s Sealed) Touched(m MemoryTouched) Touched {
	return once(s.layout.translate(m, inMemory, inImage))
}

// once leaves each page in its first place only, and ends at the bounds.
func once(runs []PageRun) []PageRun {
	var out []PageRun
	var there cover
	left := uint64(MaxTouchedBytes / pageSize)
	for _, r := range runs {
		for _, fresh := range there.add(r) {
			fresh.Count = min(fresh.Count, left)
			if fresh.Count == 0 {
				return out
			}
			left -= fresh.Count
			if out = appendRun(out, fresh); len(out) == MaxTouched {
				return out
			}
		}
	}
	return out
}

// cover is a set of pages: runs that ascend and don't touch.
type cover []PageRun

// add returns those pages of r that were not there yet.
func (c *cover) add(r PageRun) (fresh []PageRun) {
	if r.Count == 0 || r.Page > math.MaxUint64-r.Count {
		return nil
	}
	first, _ := slices.BinarySearchFunc(*c, r.Page, func(have PageRun, page uint64) int {
		if have.end() < page {
			return -1
		}
		return 1
	})
	last, at := first, r.Page
	whole := r
	for ; last < len(*c) && (*c)[last].Page <= r.end(); last++ {
		have := (*c)[last]
		if at < have.Page {
			fresh = append(fresh, PageRun{at, have.Page - at})
		}
		at = max(at, have.end())
		end := max(whole.end(), have.end())
		whole.Page = min(whole.Page, have.Page)
		whole.Count = end - whole.Page
	}
	if at < r.end() {
		fresh = append(fresh, PageRun{at, r.end() - at})
	}
	*c = slices.Replace(*c, first, last, whole)
	return fresh
}
