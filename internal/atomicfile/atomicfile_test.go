package atomicfile

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestWriteReplacesContentAndMode(t *testing.T) {
	for _, sync := range []bool{false, true} {
		path := filepath.Join(t.TempDir(), "state.json")
		for _, content := range []string{"first", "second, longer", ""} {
			if err := Write(path, []byte(content), 0o640, Options{Sync: sync}); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(path)
			if err != nil || string(got) != content {
				t.Fatalf("read %q, %v; want %q", got, err, content)
			}
			if fi, _ := os.Stat(path); fi.Mode().Perm() != 0o640 {
				t.Fatalf("mode %v", fi.Mode())
			}
		}
		if n := names(t, filepath.Dir(path)); len(n) != 1 {
			t.Fatalf("left behind: %v", n)
		}
	}
}

func TestWriteFailureLeavesTheOldFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "busy")
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Write(path, []byte("x"), 0o600, Options{}); err == nil {
		t.Fatal("a file replaced a directory")
	}
	if n := names(t, dir); len(n) != 1 || n[0] != "busy" {
		t.Fatalf("left behind: %v", n)
	}
	if err := Write(filepath.Join(dir, "absent", "x"), nil, 0o600, Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("missing directory: %v", err)
	}
}

func TestWriteFromManyWritersNeverTears(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			data := make([]byte, 10_000)
			for j := range data {
				data[j] = byte('a' + i)
			}
			if err := Write(path, data, 0o600, Options{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	got, err := os.ReadFile(path)
	if err != nil || len(got) != 10_000 {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	for _, b := range got {
		if b != got[0] {
			t.Fatal("two writers' bytes in one file")
		}
	}
}

func TestRemoveTemps(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{TempPrefix + "a-1", "kept"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTemps(dir); err != nil {
		t.Fatal(err)
	}
	if n := names(t, dir); len(n) != 1 || n[0] != "kept" {
		t.Fatalf("kept %v", n)
	}
	if err := RemoveTemps(filepath.Join(dir, "absent")); err != nil {
		t.Fatal(err)
	}
}
