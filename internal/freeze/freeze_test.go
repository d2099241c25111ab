package freeze

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestMatches(t *testing.T) {
	for match, want := range map[string]string{
		"*": "a/web a/web-1 b/web", "web": "a/web b/web", "web*": "a/web a/web-1 b/web", "a/*": "a/web a/web-1", "a/web-?": "a/web-1", "b/db": "", "?/web": "a/web b/web",
	} {
		var got []string
		for _, key := range []string{"a/web", "a/web-1", "b/web"} {
			namespace, id, _ := strings.Cut(key, "/")
			if (Note{Match: match}).Matches(namespace, id) {
				got = append(got, key)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%q matches %v, want %s", match, got, want)
		}
		if err := Check(match); err != nil {
			t.Error(err)
		}
	}
	for _, match := range []string{"", "a/", "/b", "a/b/c", "[a"} {
		if Check(match) == nil {
			t.Errorf("%q is taken for a match", match)
		}
	}
}

func TestNotesAreKeptUntilTheyAreRemoved(t *testing.T) {
	run, data := t.TempDir(), filepath.Join(t.TempDir(), "new")
	if all, err := Read(run, data); err != nil || all != nil {
		t.Fatalf("%v, %v", all, err)
	}
	since := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)
	for dir, n := range map[string]Note{run: {Match: Node, Since: since, Why: "the release", UntilBoot: true}, data: {Match: "a/web", Since: since}} {
		for range 2 { // the second takes the first one's place
			if err := Write(dir, n); err != nil {
				t.Fatal(err)
			}
		}
	}
	all, err := Read(run, data)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", all, err)
	}
	if got := all.Of("b", "db"); got == nil || got.String() != "the node is frozen since 2026-12-01T10:00:00Z (the release)" || !got.UntilBoot {
		t.Errorf("got %v", got)
	}
	if removed, err := Remove(Node, run, data); err != nil || len(removed) != 1 {
		t.Errorf("%v, %v", removed, err)
	}
	if all, _ = Read(run, data); all.Of("b", "db") != nil || all.Of("a", "web") == nil {
		t.Errorf("left: %v", all)
	}
	if removed, err := Remove("", run, data); err != nil || len(removed) != 1 || removed[0].Match != "a/web" {
		t.Errorf("%v, %v", removed, err)
	}
	if removed, err := Remove("", run, data); err != nil || removed != nil {
		t.Errorf("%v, %v", removed, err)
	}
}

// One that is damaged was wanted by somebody: it holds for all, and can be removed.
func TestADamagedNoteHoldsForTheNode(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(file(dir, "a/web"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := Read(dir)
	if n := all.Of("b", "db"); err != nil || n == nil || !strings.Contains(n.Why, "can't be read") {
		t.Errorf("%v, %v", all, err)
	}
	if removed, err := Remove("", dir); err != nil || len(removed) != 1 {
		t.Errorf("%v, %v", removed, err)
	}
}

func TestReaderRemembersForAMoment(t *testing.T) {
	dir := t.TempDir()
	r := &Reader{Dirs: []string{dir}, Every: time.Hour}
	if len(r.Notes()) != 0 {
		t.Fatal("there is none")
	}
	if err := Write(dir, Note{Match: Node}); err != nil {
		t.Fatal(err)
	}
	if len(r.Notes()) != 0 {
		t.Error("it has looked again at once")
	}
	r.Every = 0
	if len(r.Notes()) != 1 {
		t.Error("it doesn't look again")
	}
	if err := os.Rename(dir, dir+".gone"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // can't be listed
		t.Fatal(err)
	}
	if len(r.Notes()) != 1 {
		t.Error("what can't be read is forgotten")
	}
}
