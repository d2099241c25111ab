package rights

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A lease is read as it was written, and one of another boot, whose clock began anew, is none.
func TestLease(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadLease(dir); !errors.Is(err, ErrNoLease) {
		t.Errorf("%v", err)
	}
	want := Lease{Node: "a", Sleep: time.Second, End: time.Minute}
	if err := WriteLease(dir, want); err != nil {
		t.Fatal(err)
	}
	got, err := ReadLease(dir)
	if want.Boot = bootID(); err != nil || got != want || want.Boot == "" {
		t.Errorf("%+v, %v", got, err)
	}
	path := filepath.Join(dir, leaseName)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(string(text), want.Boot, "another")), 0o600); err != nil {
		t.Fatal(err)
	}
	if l, err := ReadLease(dir); !errors.Is(err, ErrNoLease) || l != (Lease{}) {
		t.Errorf("%+v, %v", l, err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadLease(dir); err == nil || errors.Is(err, ErrNoLease) {
		t.Errorf("%v", err)
	}
}

func TestSinceBoot(t *testing.T) {
	if a, b := SinceBoot(), SinceBoot(); a <= 0 || b < a {
		t.Errorf("%v, then %v", a, b)
	}
}
