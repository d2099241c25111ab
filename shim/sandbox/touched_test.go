package sandbox

import (
	"math"
	"slices"
	"testing"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Reads are told in the pages that they lie in; what can't be a read is none.
func TestAsTouched(t *testing.T) {
	got := asTouched([]runsc.Read{{Off: 0, N: 4096}, {Off: 8191, N: 2}, {Off: -1, N: 5}, {Off: 5, N: -1}, {Off: 4096, N: 0}, {Off: 1, N: math.MaxInt64}})
	want := snapshot.Touched{{Page: 0, Count: 1}, {Page: 1, Count: 2}, {}, {}, {}, {}}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// What was asked for of one sandbox's memory says nothing of the next one's, which may have begun afresh.
func TestTouchedIsOneSandboxs(t *testing.T) {
	w := &Workload{generation: 3, touched: touched{generation: 3, memory: snapshot.MemoryTouched{{Page: 1, Count: 2}}}}
	if got := w.firstTouched(); len(got) != 1 {
		t.Errorf("of the sandbox itself: %v", got)
	}
	w.generation++
	if got := w.firstTouched(); got != nil {
		t.Errorf("of the next one: %v", got)
	}
}
