package verbs

import (
	"fmt"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A sleeper works with no memory, and one that was woken with no more than before: the snapshot's files, which its sandbox
// wrote and read, are not counted twice.
func testMemoryThroughSleep(t *testing.T, n *node) {
	s := n.serve(harness.Container{ID: "a", Flags: []string{"--memory-limit", "402653184"}})
	s.get("/memory?mib=192")
	before := n.status("a").GetMemoryBytes()
	if before < 192<<20 {
		t.Fatalf("it works with %d bytes", before)
	}
	for range 2 {
		s.rest()
		n.sleep("a")
		if now := n.status("a").GetMemoryBytes(); now > 32<<20 {
			t.Errorf("asleep it works with %d bytes", now)
		}
		s.get("/counter")
		n.until("the memory of the snapshot's files is given back", func() (bool, string) {
			now := n.status("a").GetMemoryBytes()
			return now < before+64<<20, fmt.Sprintf("it works with %d bytes, before it slept with %d", now, before)
		})
	}
}
