package store

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/known"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store/storetest"
)

// TestOperators: what a person does with snapshots in a real store, through the daemon that has its credentials; and a rotation of the key.
func TestOperators(t *testing.T) {
	s := newS3(t)
	right := s.settings(s.bucket, "right")
	s.restart(right)
	web := s.node.server("web", 8)
	for n := 1; n <= 2; n++ {
		web.Sleep()
		s.stored("web", n)
		web.GoesOn()
	}
	s.says(s.ctl(0, "snapshots", "show", "web@1"), s.Name+"/web", "1 of epoch", "runsc ", "pages.img")
	s.says(s.ctl(0, "snapshots", "pin", "web@1"), "is pinned")
	s.says(s.ctl(4, "snapshots", "rm", "web@1"), "pinned")
	s.says(s.ctl(4, "snapshots", "rm", "web@2"), "newest", "--force")
	s.says(s.ctl(4, "snapshots", "rm", "web"), "is on this node")

	dir, archive, local := filepath.Join(s.Dir, "export"), filepath.Join(s.Dir, "export.tar"), filepath.Join(s.Dir, "local")
	s.says(s.ctl(0, "snapshots", "export", "web@1", dir), "snapshot 1 of ")
	s.says(s.ctl(0, "snapshots", "export", "web", "--tar", archive), "snapshot 2 of ")
	s.says(s.ctl(0, "snapshots", "export", "--local", s.Name+"/web", local), "snapshot 2 of ")
	for _, d := range []string{dir, local} {
		e, err := snapshot.OpenExport(d)
		s.must(err)
		if m, ok := e.Manifest(); !ok || m.ID != "web" {
			t.Errorf("%s: %+v", d, m)
		}
	}
	s.says(s.ctl(0, "snapshots", "import", archive, "elsewhere/web"), "elsewhere/web")
	s.says(s.ctl(0, "snapshots", "verify", "elsewhere/web"), "is whole")

	both := s.settings(s.bucket, "other")
	both["store-older-keys"] = "[" + strconv.Quote(s.key("right")) + "]"
	s.restart(both)
	known.Eventually(t, "it is told what needs the older key", func() bool { return strings.Contains(s.Daemon.LogTail(1<<20), "needing=2") })
	s.says(s.ctl(0, "snapshots", "rewrap", "--dry-run"), "2 to be wrapped anew")
	s.says(s.ctl(0, "snapshots", "rewrap"), "2 wrapped anew", "0 failed")
	s.restart(s.settings(s.bucket, "other"))
	for _, name := range []string{"web@1", "web@2", "elsewhere/web"} {
		s.says(s.ctl(0, "snapshots", "verify", name), "is whole")
	}
	web.Sleep()
	s.stored("web", 3)
	s.restart(right)
	s.says(s.ctl(0, "snapshots", "ls"), "wrong key")
	s.restart(s.settings(s.bucket, "other"))
	web.GoesOn()

	s.must(s.Remove(s.context(), "web"))
	known.Eventually(t, "it has left", func() bool { return strings.Contains(s.ctl(0, "snapshots", "ls"), "container gone") })
	s.says(s.ctl(0, "snapshots", "unpin", "web@1"), "is not pinned")
	s.says(s.ctl(0, "snapshots", "rm", "web"), "destroyed")
	s.says(s.ctl(3, "snapshots", "verify", "web"), "destroyed on purpose")
}

// TestNobodyWantsIt: a sleeper that nobody wakes is ended when its time is over, told, with its snapshots on the node and in the store; one
// that says nothing sleeps on.
func TestNobodyWantsIt(t *testing.T) {
	s := newS3(t)
	s.restart(s.settings(s.bucket, "right"))
	forever := s.node.server("forever", 4)
	forever.Sleep()
	short := s.annotated("short", 4, map[string]string{"delete-after": "12s"})
	short.Sleep()
	s.stored("short", 1)
	dir := s.local("short")
	s.says(s.ctl(0, "inspect", "short"), "unless it is woken: delete-after")
	short.GoesOn() // begins anew
	short.Sleep()
	known.Eventually(t, "ls tells it before", func() bool { return strings.Contains(s.ctl(0, "ls"), "deleted in") })
	s.must(s.WaitTask(s.context(), "short", "STOPPED"))
	known.Eventually(t, "its snapshots are destroyed", func() bool { return strings.Contains(s.Daemon.LogTail(1<<20), "are destroyed: delete-after") })
	s.says(s.ctl(0, "snapshots", "ls"), "destroyed")
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "image")); len(left) > 0 {
		t.Errorf("left on the node: %q", left)
	}
	s.says(s.Daemon.LogTail(1<<20), "it will be ended", "was ended, with status 137")
	told, err := os.ReadFile(s.Path(filepath.Join(s.DataDir(), ".expired.jsonl")))
	s.must(err)
	s.says(string(told), `"id":"short"`)
	if n := s.metric(`hibernate_expired_total{what="sleeper"}`); n != 1 {
		t.Errorf("counted %v", n)
	}
	forever.GoesOn()
	s.must(os.Remove(s.Path(filepath.Join(s.DataDir(), ".expired.jsonl"))))
}

// TestQuarantineIsEmptied: what was set aside goes after delete-after, while its workload lives on.
func TestQuarantineIsEmptied(t *testing.T) {
	storetest.Require(t)
	n := newNode(t)
	dir := filepath.Join(n.Dir, "kept")
	n.must(os.Mkdir(dir, 0o700))
	n.restart(map[string]string{"store": strconv.Quote("file://" + dir)})
	web := n.annotated("web", 4, map[string]string{"delete-after": "10s"})
	web.Sleep()
	n.stored("web", 1)
	n.must(os.Remove(filepath.Join(n.local("web"), "1", "image", "pages.img")))
	web.GoesOn()
	n.setAside("web", 1, 1)
	web.Sleep()
	n.setAside("web", 1, 1)
	known.Eventually(t, "it is deleted", func() bool {
		web.GoesOn()
		web.Sleep()
		left, err := filepath.Glob(filepath.Join(n.local("web"), "quarantine", "*"))
		n.must(err)
		return len(left) == 0
	})
	web.GoesOn()
}
