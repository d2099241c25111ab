package runsc

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every captured failure of runsc is of the kind that it was provoked as.
func TestClassify(t *testing.T) {
	files, err := filepath.Glob("testdata/errors/*.json")
	if err != nil || len(files) < 40 {
		t.Fatalf("%d fixtures, %v", len(files), err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".json"), func(t *testing.T) {
			f := readFixture(t, file)
			log := filepath.Join(t.TempDir(), "log")
			if err := os.WriteFile(log, []byte(f.Log), 0o600); err != nil {
				t.Fatal(err)
			}
			op := call{command: f.Command, id: "c"}
			err := failure(context.Background(), op, &ExitError{Code: f.Code}, log, []byte(f.Stderr))
			var e *Error
			if !errors.As(err, &e) || e.Code != f.Code {
				t.Fatalf("error is %#v", err)
			}
			if got := kindText(e.Kind); got != f.Kind {
				t.Errorf("kind %q, want %q: %v", got, f.Kind, err)
			}
		})
	}
}

func readFixture(t *testing.T, file string) fixture {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var f fixture
	if err := json.Unmarshal(data, &f); err != nil {
		t.Fatal(err)
	}
	return f
}

func kindText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
