package snapshot

import (
	"path/filepath"
	"testing"
)

func TestHeld(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	held := func(want bool) {
		t.Helper()
		if got, err := Held(dir); err != nil || got != want {
			t.Errorf("held %v, %v; want %v", got, err, want)
		}
	}
	held(false)
	l, err := OpenLocal(dir)
	if err != nil {
		t.Fatal(err)
	}
	held(true)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	held(false)
}
