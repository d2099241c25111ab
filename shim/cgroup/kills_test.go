package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

const patience = 10 * time.Second

// descriptors are what this process has open.
func descriptors(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

// hog runs a program in the group that takes memory without end.
func hog(t *testing.T, g *Group) {
	t.Helper()
	cmd := exec.Command("tail", "/dev/zero")
	if err := g.Spawn(cmd, cmd.Start); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || cmd.ProcessState.String() != "signal: killed" {
		t.Errorf("it ended with %v", err)
	}
}

// Every kill is counted and told, whether or not it is the first; a group's
// removal is none.
func TestKillsAreTold(t *testing.T) {
	limit := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](16 << 20)}}
	g := newGroup(t, limit)
	if n, err := g.Kills(); n != 0 || err != nil {
		t.Fatalf("%d kills, %v, of a new group", n, err)
	}
	open := descriptors(t)
	told := make(chan uint64, 16)
	stop, err := g.WatchKills(func(n uint64) { told <- n })
	if err != nil {
		t.Fatal(err)
	}
	if more := descriptors(t) - open; more > 2 { // one more for the runtime's own poller, once
		t.Errorf("a watch costs %d descriptors", more)
	}
	for want := uint64(1); want <= 2; want++ {
		hog(t, g)
		if n, err := g.Kills(); n != want || err != nil {
			t.Errorf("%d kills, %v; want %d", n, err, want)
		}
		select {
		case n := <-told:
			if n != want {
				t.Errorf("told of %d kills, want %d", n, want)
			}
		case <-time.After(patience):
			t.Fatal("a kill was not told")
		}
	}
	if err := g.Delete(); err != nil {
		t.Fatal(err)
	}
	stop()
	stop()
	if len(told) != 0 {
		t.Errorf("told of %d kills at the removal", <-told)
	}
	if more := descriptors(t) - open; more > 1 {
		t.Errorf("%d descriptors are left", more)
	}
	if _, err := g.WatchKills(nil); err == nil {
		t.Error("a group that is gone can be watched")
	}
}

// A group that had kills before tells only those that come.
func TestKillsBeforeTheWatchAreNotTold(t *testing.T) {
	g := newGroup(t, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: ptr[int64](16 << 20)}})
	hog(t, g)
	told := make(chan uint64, 16)
	stop, err := g.WatchKills(func(n uint64) { told <- n })
	if err != nil {
		t.Fatal(err)
	}
	hog(t, g)
	select {
	case n := <-told:
		if n != 2 {
			t.Errorf("told of %d kills, want 2", n)
		}
	case <-time.After(patience):
		t.Fatal("a kill was not told")
	}
	stop()
}

// The way in which v2 hosts are watched, tried on a file that any v2 hierarchy
// has, a hybrid host's too: a process comes, a process goes.
func TestFieldWatch(t *testing.T) {
	testroot.Require(t)
	top := unifiedRoot
	if cgroups.Mode() != cgroups.Unified {
		top = filepath.Join(unifiedRoot, "unified")
	}
	dir := filepath.Join(top, "hibernate-test-"+strconv.Itoa(os.Getpid())+"-field")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := removeWait(dir, time.Now().Add(patience)); err != nil {
			t.Error(err)
		}
	})
	w, err := watchField(filepath.Join(dir, "cgroup.events"), "populated")
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	next := func() { _, err := w.next(0); got <- err }
	for range 3 { // each change is told again
		go next()
		select {
		case err := <-got:
			t.Fatalf("told without a change: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		cmd := exec.Command("/bin/sh", "-c", "read never")
		stdin, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		u := &unified{root: top, path: filepath.Base(dir)}
		if err := u.spawn(cmd, cmd.Start); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-got:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(patience):
			t.Fatal("a change was not told")
		}
		_ = stdin.Close()
		_ = cmd.Wait()
		waitFor(t, func() bool {
			n, err := readField(filepath.Join(dir, "cgroup.events"), "populated")
			return err == nil && n == 0
		})
	}
	go next()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err == nil {
		t.Error("a closed watch tells of a change")
	}
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("waited in vain")
		}
	}
}

// A v2 group's count, as the kernel writes it.
func TestUnifiedKills(t *testing.T) {
	u := fixture(t, map[string]string{"memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n"})
	if n, err := u.kills(); n != 2 || err != nil {
		t.Errorf("%d kills, %v", n, err)
	}
	if w, err := u.watch(); err == nil {
		t.Error("a plain file can be watched")
		_ = w.Close()
	}
}

// fixture is a v2 group of plain files.
func fixture(t *testing.T, files map[string]string) *unified {
	t.Helper()
	u := &unified{root: t.TempDir(), path: "/c"}
	if err := os.Mkdir(u.dir(), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(u.dir(), name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return u
}
