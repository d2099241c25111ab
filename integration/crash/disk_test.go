package crash

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	diskSize = 512 // MiB of the data-dir's file system
	heap     = 96  // MiB that a checkpoint must write
)

// smallDisk makes a world whose data-dir is a small file system.
func smallDisk(t *testing.T) *harness.World {
	w := harness.New(t, harness.Options{Settings: map[string]string{"mode": `"manual"`, "min-free-disk": `"0"`}})
	_, err := w.Shell(t.Context(), fmt.Sprintf("mount -t tmpfs -o mode=700,size=%dm tmpfs %s", diskSize, w.DataDir()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := w.Shell(context.Background(), "umount "+w.DataDir()); err != nil {
			t.Error(err)
		}
	})
	return w
}

// resize changes the size of the data-dir's file system, in MiB beyond what is used; in an instant, and without a word
// to those who have looked at its free space a moment ago.
func (a *app) resize(free int) {
	a.Helper()
	var st syscall.Statfs_t
	a.must(syscall.Statfs(a.w.Path(a.w.DataDir()), &st))
	used := int((st.Blocks-st.Bfree)*uint64(st.Bsize)>>10) + free<<10
	_, err := a.w.Shell(a.ctx(), fmt.Sprintf("mount -o remount,size=%dk %s", max(used, 4), a.w.DataDir()))
	a.must(err)
}

// The disk fills up while the checkpoint is written: the container goes on running, and sleeps when there is space.
func TestDiskFullDuringCheckpoint(t *testing.T) {
	w := smallDisk(t)
	a := start(t, w, "full", options{mib: heap})
	old := a.dial()
	a.must(echo(old, "before"))
	hold := step(t, a)
	done := make(chan error, 1)
	go func() {
		tr, err := w.Sleep(a.ctx(), a.ID)
		if err == nil {
			err = fmt.Errorf("hibernation: %v", tr)
		}
		done <- err
	}()
	hold.Until("checkpoint") // which has the space for it, until now
	a.resize(heap / 4)
	hold.Release()
	err := <-done
	if !strings.Contains(err.Error(), "space") {
		t.Errorf("the failure doesn't tell of space: %v", err)
	}
	a.GoesOn()
	a.must(echo(old, "goes on"))
	s, err := w.Status(a.ctx(), a.ID)
	a.must(err)
	if last := s.GetLastHibernate(); s.GetState() != "awake" || last.GetOutcome() != "failed" || !strings.Contains(last.GetDetail(), "space") {
		t.Errorf("%s, told as %s: %s", s.GetState(), last.GetOutcome(), last.GetDetail())
	}
	if _, err := os.Stat(filepath.Join(a.snapshots(), "incoming")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what was half written is still there: %v", err)
	}

	_, err = w.Hibernate(a.ctx(), a.ID) // it is refused before anything is done
	if err == nil || !strings.Contains(err.Error(), "disk") {
		t.Errorf("without space: %v", err)
	}
	a.GoesOn()
	a.resize(diskSize)
	a.sleep()
	a.GoesOn()
	a.must(echo(old, "after"))
}

// A disk that is full when a sleeper is to wake keeps it from nothing.
func TestDiskFullDuringWake(t *testing.T) {
	w := smallDisk(t)
	a := start(t, w, "wakes", options{})
	a.sleep()
	a.fill()
	a.GoesOn()
	if outcome, detail := a.lastWake(); outcome != "restored" {
		t.Fatalf("%s: %s", outcome, detail)
	}
}

// fill leaves not a block free in the data-dir.
func (a *app) fill() {
	a.Helper()
	a.resize(1)
	path := filepath.Join(a.w.Path(a.w.DataDir()), "filler")
	f, err := os.Create(path)
	a.must(err)
	a.Cleanup(func() { os.Remove(path) })
	defer f.Close()
	for _, size := range []int{64 << 10, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			a.Fatal(err)
		}
	}
}
