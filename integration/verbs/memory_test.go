package verbs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// listen begins to listen to containerd's events.
func (n *node) listen() *process {
	n.t.Helper()
	p := n.start("events")
	n.t.Cleanup(p.stop)
	n.until("ctr listens", func() (bool, string) {
		n.must("namespaces", "label", n.Name, "probe=1") // an event of its own, until one is seen
		return p.out.has("/namespaces/update"), p.out.String()
	})
	return p
}

// A container that takes more memory than it may is killed; containerd is told why before it is told the end, after any
// number of sleeps.
func testStarved(t *testing.T, n *node) {
	p := n.listen()
	c := shell("a", "trap 'exec tail /dev/zero' USR1; while :; do sleep 0.1; done")
	c.Flags = []string{"--memory-limit", "134217728"}
	n.detached(c)
	for range 2 {
		n.sleep("a")
		if _, err := n.Wake(n.context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	n.must("tasks", "kill", "--signal", "SIGUSR1", "a")
	if err := n.WaitTask(n.context(), "a", "STOPPED"); err != nil {
		t.Fatal(err)
	}
	n.until("the end is told", func() (bool, string) { return slices.Contains(topics(p), "exit"), p.out.String() })
	if got := topics(p); !slices.Equal(got, []string{"create", "start", "oom", "exit"}) {
		t.Errorf("events %v", got)
	}
	if !strings.Contains(p.out.String(), `"exit_status":137`) {
		t.Errorf("not told as killed:\n%s", p.out)
	}
}

// What ends without want of memory is not told as if: neither a sleeper's freed sandbox, nor a kill.
func testNotStarved(t *testing.T, n *node) {
	p := n.listen()
	s := n.serve(harness.Container{ID: "a", Flags: []string{"--memory-limit", "268435456"}})
	s.get("/memory?mib=64")
	for range 2 {
		s.rest()
		n.sleep("a")
		s.get("/counter")
	}
	n.must("tasks", "kill", "--signal", "SIGKILL", "a")
	n.until("the end is told", func() (bool, string) { return slices.Contains(topics(p), "exit"), p.out.String() })
	if got := topics(p); !slices.Equal(got, []string{"create", "start", "exit"}) {
		t.Errorf("events %v", got)
	}
}

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
