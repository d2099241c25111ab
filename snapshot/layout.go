package snapshot

import (
	"cmp"
	"slices"
)

// layout says where in pages.img the pages of the main memory file are: those that pages_meta.img calls committed, one range
// after the other. Offsets in the memory file outlive checkpoint and restore; offsets in pages.img move with what is committed
// before them.
type layout []segment

// segment is pages that follow each other in both files. Segments ascend in both.
type segment struct{ memory, image, count uint64 }

func layoutOf(meta []byte) (layout, error) {
	var l layout
	var image uint64
	_, _, err := memoryFile(meta, func(r acctRange) {
		n := (r.end - r.start) / pageSize
		l = append(l, segment{r.start / pageSize, image, n})
		image += n
	})
	return l, err
}

func readLayout(imageDir string) (layout, error) {
	meta, err := readPart(imageDir, pagesMetaFile)
	if err != nil {
		return nil, err
	}
	return layoutOf(meta)
}

func inMemory(s segment) uint64 { return s.memory }
func inImage(s segment) uint64  { return s.image }

// translate finds pages of the one file in the other, in the same order. What is not there is left out.
func (l layout) translate(runs []PageRun, from, to func(segment) uint64) []PageRun {
	var out []PageRun
	for _, r := range runs {
		first, _ := slices.BinarySearchFunc(l, r.Page, func(s segment, page uint64) int { return cmp.Compare(from(s)+s.count, page+1) })
		for _, s := range l[first:] {
			if from(s) >= r.end() {
				break
			}
			start, end := max(from(s), r.Page), min(from(s)+s.count, r.end())
			out = appendRun(out, PageRun{to(s) + start - from(s), end - start})
		}
	}
	return out
}

// appendRun makes what follows the last run part of it.
func appendRun(runs []PageRun, r PageRun) []PageRun {
	if last := len(runs) - 1; last >= 0 && runs[last].end() == r.Page {
		runs[last].Count += r.Count
		return runs
	}
	return append(runs, r)
}
