package journal

import (
	"os"
	"path/filepath"
	"testing"
)

func TestReadTellsTheNewestStep(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	if entry, err := Read(path); err != nil || entry.Operation != "" {
		t.Fatalf("no journal reads as %+v, %v", entry, err)
	}
	j := New(path)
	for _, act := range []func() error{
		func() error { return j.Begin("hibernate", "a1") },
		func() error { return j.Step("pause") },
		func() error { return j.Step("checkpoint") },
	} {
		if err := act(); err != nil {
			t.Fatal(err)
		}
	}
	entry, err := Read(path)
	if err != nil || entry.Operation != "hibernate" || entry.ID != "a1" || entry.Step != "checkpoint" || entry.Time.IsZero() {
		t.Fatalf("got %+v, %v", entry, err)
	}
	if err := j.End(); err != nil {
		t.Fatal(err)
	}
	if entry, err = Read(path); err != nil || entry.Step != Done {
		t.Fatalf("got %+v, %v", entry, err)
	}
}

func TestADamagedJournalIsAnError(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal.json")
	if err := os.WriteFile(path, []byte("{\"operation\":"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path); err == nil {
		t.Fatal("a torn file was read")
	}
}

func TestAJournalThatCannotBeWrittenSaysSo(t *testing.T) {
	j := New(filepath.Join(t.TempDir(), "absent", "journal.json"))
	if err := j.Begin("wake", "a2"); err == nil {
		t.Fatal("a journal in an absent directory was written")
	}
}
