package cordon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNote(t *testing.T) {
	run, data := t.TempDir(), filepath.Join(t.TempDir(), "not", "there", "yet")
	if n, err := Read(run, data); n != nil || err != nil {
		t.Fatalf("at first: %v, %v", n, err)
	}
	want := Note{Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Why: "new disk"}
	if err := Write(data, want); err != nil {
		t.Fatal(err)
	}
	n, err := Read(run, data)
	if err != nil || n == nil || *n != want || n.String() != "the node is cordoned since 2026-01-02T03:04:05Z (new disk)" {
		t.Fatalf("written: %v, %v", n, err)
	}
	if err := Write(run, Note{UntilBoot: true}); err != nil {
		t.Fatal(err)
	}
	if n, _ := Read(run, data); n == nil || !n.UntilBoot {
		t.Errorf("the first counts: %+v", n)
	}
	if removed, err := Remove(run); !removed || err != nil {
		t.Errorf("one: %v, %v", removed, err)
	}
	if n, _ := Read(run, data); n == nil || n.UntilBoot {
		t.Errorf("the other one stays: %+v", n)
	}
	if removed, err := Remove(run, data); !removed || err != nil {
		t.Errorf("all: %v, %v", removed, err)
	}
	if removed, err := Remove(run, data); removed || err != nil {
		t.Errorf("none: %v, %v", removed, err)
	}
}

// One that can't be read is one all the same.
func TestDamagedNote(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n, err := Read(dir); err != nil || n == nil || !strings.Contains(n.Why, "can't be read") {
		t.Errorf("%v, %v", n, err)
	}
}
