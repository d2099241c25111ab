package gofer

import (
	"cmp"
	"slices"
)

// resync is how many bytes in one go, out of turn, are taken for the turn: somewhere memory was freed, which is never asked for.
const resync = 64 << 20

// turns tells, as reads are asked for, which come in their turn. gVisor asks for each byte at most once: by rising offsets, but for
// what somebody waits for. It is a guess, by which nothing but the order is chosen. It is used by one goroutine at a time.
type turns struct {
	next  int64     // where the turn goes on
	asked []stretch // beyond it, rising: what was asked for out of turn
	run   stretch   // the last ones out of turn, one behind the other
}

// add notes a read, and says whether it comes in its turn.
func (t *turns) add(off, n int64) bool {
	t.skip()
	if t.run.off+t.run.n == off {
		t.run.n += n
	} else {
		t.run = stretch{off, n}
	}
	if off == t.next || t.run.n >= resync {
		t.next, t.run = off+n, stretch{}
		return true
	}
	if off > t.next {
		i, _ := slices.BinarySearchFunc(t.asked, off, func(s stretch, off int64) int { return cmp.Compare(s.off, off) })
		t.asked = slices.Insert(t.asked, i, stretch{off, n})
	}
	return false
}

// skip passes what was asked for before its turn.
func (t *turns) skip() {
	for len(t.asked) > 0 && t.asked[0].off <= t.next {
		t.next = max(t.next, t.asked[0].off+t.asked[0].n)
		t.asked = t.asked[1:]
	}
}
