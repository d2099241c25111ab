package roottest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

func openLocal(t *testing.T, dir string) *snapshot.Local {
	t.Helper()
	l, err := snapshot.OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// hibernate takes a snapshot as the shim does, and deletes the sandbox.
func (s *sandbox) hibernate(l *snapshot.Local, flags ...string) (*snapshot.Snapshot, snapshot.Sealed) {
	s.t.Helper()
	in, err := l.Begin(s.t.Context())
	s.must(err)
	s.runsc("pause", s.id)
	stop := in.WriteAhead()
	s.runsc(append(append([]string{"checkpoint", "--leave-running", "--image-path", in.ImageDir()}, flags...), s.id)...)
	stop()
	sealed, err := in.Seal(s.t.Context())
	s.must(err)
	snap, err := in.Commit(s.t.Context(), snapshot.Manifest{Namespace: "default", ID: s.id})
	s.must(err)
	s.runsc("delete", "--force", s.id)
	s.drain()
	return snap, sealed
}

func (s *sandbox) wake(l *snapshot.Local) {
	s.t.Helper()
	snap, err := l.Current()
	s.must(err)
	s.must(snap.Verify(s.t.Context()))
	s.runsc("restore", "--detach", "--bundle", s.bundle, "--image-path", snap.ImageDir(), s.id)
	s.must(l.SetState(s.t.Context(), snapshot.Awake))
	s.line("")
}

// The sizes of what runsc writes are understood to the byte, with a private
// memory file, in each generation, and with zero pages left out.
func TestRealCheckpoints(t *testing.T) {
	s := newSandbox(t, 48, 24)
	l := openLocal(t, filepath.Join(t.TempDir(), "w"))
	for i, flags := range [][]string{nil, {"--exclude-committed-zero-pages"}, nil} {
		snap, sealed := s.hibernate(l, flags...)
		st, err := os.Stat(filepath.Join(snap.ImageDir(), "pages.img"))
		s.must(err)
		if sealed.Memory != uint64(st.Size()) || st.Size() < 72<<20 {
			t.Fatalf("generation %d: %d bytes of pages, %d committed", i, st.Size(), sealed.Memory)
		}
		if entries, err := os.ReadDir(snap.ImageDir()); err != nil || len(entries) != 3 {
			t.Fatalf("%v, %v", entries, err)
		}
		t.Logf("generation %d: %d MiB, check %v, hash %v, sync %v", i, sealed.Size>>20, sealed.Check, sealed.Hash, sealed.Sync)
		s.wake(l)
	}
}

// A real checkpoint cut off anywhere is never sealed.
func TestRealCheckpointCutOff(t *testing.T) {
	s := newSandbox(t, 1, 2)
	l := openLocal(t, filepath.Join(t.TempDir(), "w"))
	snap, _ := s.hibernate(l)
	s.must(l.SetState(t.Context(), snapshot.Awake))
	for _, f := range snap.Manifest().Files {
		for i := range int64(24) {
			at := f.Size * i / 24
			if i == 23 {
				at = f.Size - 1
			}
			t.Run(fmt.Sprintf("%s/%d", f.Name, at), func(t *testing.T) { cutOff(t, l, snap, f.Name, at) })
		}
	}
}

func cutOff(t *testing.T, l *snapshot.Local, snap *snapshot.Snapshot, name string, at int64) {
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range snap.Manifest().Files {
		if err := os.Link(filepath.Join(snap.ImageDir(), f.Name), filepath.Join(in.ImageDir(), f.Name)); err != nil {
			t.Fatal(err)
		}
	}
	whole, err := os.ReadFile(filepath.Join(snap.ImageDir(), name))
	if err != nil {
		t.Fatal(err)
	}
	cut := filepath.Join(in.ImageDir(), name)
	if err := errors.Join(os.Remove(cut), os.WriteFile(cut, whole[:at], 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seal(t.Context()); !errors.Is(err, snapshot.ErrTruncated) {
		t.Fatal(err)
	}
}
