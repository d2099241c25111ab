package verbs

import (
	"fmt"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// harmless are flags that runsc-flags takes, with values that are not runsc's own.
const harmless = `[
	"--allow-packet-socket-write", "--allow-suid", "--app-huge-pages=false", "--character-device-policy=prefer-emulated",
	"--control-rpc-stop-timeout=1s", "--cpu-num-from-quota=false", "--dcache=64", "--debug", "--debug-log=%[1]s/",
	"--debug-log-format=json", "--fdlimit=4096", "--final-metrics-log=%[1]s/metrics", "--gso=false", "--gvisor-gro",
	"--gvisor-marker-file", "--host-settings=ignore", "--in-sandbox-cgroup=v2", "--net-raw",
	"--network-processors-per-channel=1", "--num-network-channels=2", "--oci-seccomp", "--override-procs=kallsyms",
	"--panic-log=%[1]s/panic", "--qdisc=none", "--ref-leak-mode=log-names", "--software-gso=false", "--strace",
	"--strace-syscalls=openat", "--strace-log-size=64", "--systrap-disable-fast-path", "--traceback=all",
	"--watchdog-action=panic"
]`

// The flags that are said to leave sleep and wake intact do.
func TestHarmlessFlags(t *testing.T) {
	n := &node{harness.New(t, harness.Options{Settings: map[string]string{
		"mode": `"manual"`, "runsc-flags": fmt.Sprintf(harmless, t.TempDir()),
	}}), t}
	s := n.serve(harness.Container{ID: "a", Flags: []string{"--memory-limit", "268435456", "--cpus", "1.5"}})
	s.get("/memory?mib=16")
	sum := s.get("/memory/sha256")
	for i := range 3 {
		if got := s.get("/counter"); got != fmt.Sprint(i+1) {
			t.Errorf("counter %s after %d sleeps", got, i)
		}
		s.rest()
		n.sleep("a")
	}
	if got := s.get("/memory/sha256"); got != sum {
		t.Errorf("memory is %s, was %s", got, sum)
	}
	if w := n.status("a").GetLastWake(); w.GetOutcome() != "restored" {
		t.Errorf("it was %v", w)
	}
}
