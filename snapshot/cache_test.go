package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// cached says whether the kernel could give a file's first bytes without the
// disk.
func cached(t *testing.T, path string) bool {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	_, err = unix.Preadv2(int(f.Fd()), [][]byte{make([]byte, 1)}, 0, unix.RWF_NOWAIT)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		t.Fatal(err)
	}
	return err == nil
}

func TestUncache(t *testing.T) {
	s := take(t, open(t, t.TempDir()), pages(16, 1))
	if err := s.Verify(t.Context()); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(s.ImageDir(), pagesFile)
	if !cached(t, file) {
		t.Fatal("a file that was just read is not in memory")
	}
	if err := s.Uncache(); err != nil {
		t.Fatal(err)
	}
	if cached(t, file) {
		t.Error("the file is still in memory")
	}
	if err := s.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	if err := os.RemoveAll(s.ImageDir()); err != nil {
		t.Fatal(err)
	}
	if err := s.Uncache(); err != nil {
		t.Errorf("files that are gone: %v", err)
	}
}
