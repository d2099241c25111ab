package snapshot_test

import (
	"os"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

func TestRemoveUnused(t *testing.T) {
	dir := t.TempDir() + "/tier"
	for _, used := range []bool{true, false} {
		l, err := snapshot.OpenLocal(dir)
		if err != nil {
			t.Fatal(err)
		}
		if used {
			if err := l.SetState(t.Context(), snapshot.Awake); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.RemoveUnused(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); (err == nil) != used {
			t.Errorf("used %t: %v", used, err)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}
