package roottest

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/internal/testroot"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// small mounts a file system of that size and returns a workload's directory.
func small(t *testing.T, size string) string {
	t.Helper()
	testroot.Require(t)
	dir := filepath.Join(t.TempDir(), "small")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size="+size); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "ns", "w")
}

// fill leaves no block free, and returns what gives the space back.
func fill(t *testing.T, dir string) func() {
	t.Helper()
	path := filepath.Join(filepath.Dir(dir), "filler")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int{1 << 20, 4096, 1} {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
		if !errors.Is(err, syscall.ENOSPC) {
			t.Fatal(err)
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A disk that fills up while runsc writes: the snapshot before stays, and the
// sandbox goes on running.
func TestDiskFullDuringCheckpoint(t *testing.T) {
	s := newSandbox(t, 8, 1)
	l := openLocal(t, small(t, "128m"))
	before, _ := s.hibernate(l)
	s.wake(l)
	release := fill(t, l.Dir())
	if free, err := l.Free(); err != nil || free > 4096 {
		t.Fatalf("free %d, %v", free, err)
	}
	in, err := l.Begin(t.Context())
	s.must(err)
	s.runsc("pause", s.id)
	if err := s.try("checkpoint", "--leave-running", "--image-path", in.ImageDir(), s.id); err == nil {
		t.Fatal("a checkpoint fits into nothing")
	}
	// Even who believes in it gets no snapshot.
	if _, err := in.Seal(t.Context()); !errors.Is(err, snapshot.ErrCorrupt) {
		t.Fatal(err)
	}
	s.runsc("resume", s.id)
	s.drain()
	s.line("")
	intact(t, l, before)
	release()
	s.hibernate(l)
	s.wake(l)
}

func intact(t *testing.T, l *snapshot.Local, want *snapshot.Snapshot) {
	t.Helper()
	got, err := l.Current()
	if err != nil || got.Sequence() != want.Sequence() {
		t.Fatalf("%v, %v", got, err)
	}
	if err := got.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(l.Dir(), "incoming")); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("incoming: %v", err)
	}
}

// A disk that fills up between Seal and Commit, and at SetState: a workload that sleeps there must be able to wake.
func TestDiskFullDuringCommit(t *testing.T) {
	s := newSandbox(t, 1, 1)
	l := openLocal(t, small(t, "96m"))
	before, _ := s.hibernate(l)
	s.wake(l)
	in, err := l.Begin(t.Context())
	s.must(err)
	s.runsc("pause", s.id)
	s.runsc("checkpoint", "--leave-running", "--image-path", in.ImageDir(), s.id)
	_, err = in.Seal(t.Context())
	s.must(err)
	release := fill(t, l.Dir())
	_, err = in.Commit(t.Context(), snapshot.Manifest{Namespace: "default", ID: s.id})
	if !errors.Is(err, snapshot.ErrNoSpace) {
		t.Fatal(err)
	}
	release()
	intact(t, l, before)
	release = fill(t, l.Dir())
	for _, state := range []snapshot.State{snapshot.Asleep, snapshot.Ended} { // longer than before, and shorter
		s.must(l.SetState(t.Context(), state))
		if h, err := l.Head(); err != nil || h.State != state || h.Sequence != 1 {
			t.Fatalf("%+v, %v", h, err)
		}
	}
	release()
}
