package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func exported(t *testing.T, content []byte) (dir string, s *Snapshot) {
	t.Helper()
	s = take(t, open(t, filepath.Join(t.TempDir(), "l")), content)
	dir = t.TempDir()
	if err := s.Export(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	return dir, s
}

// importFrom imports dir into a new local tier and commits it.
func importFrom(t *testing.T, dir string) (*Snapshot, error) {
	t.Helper()
	e, err := OpenExport(dir)
	if err != nil {
		return nil, err
	}
	l := open(t, filepath.Join(t.TempDir(), "l"))
	in, err := l.Begin(t.Context())
	if err != nil {
		return nil, err
	}
	if _, err := in.Import(t.Context(), e); err != nil {
		if left := tree(t, l.Dir()); len(left) > 0 && !slices.Equal(left, []string{trashDir}) {
			t.Errorf("a failed import left %v", left)
		}
		return nil, err
	}
	return in.Commit(t.Context(), Manifest{Namespace: "default", ID: "copy"})
}

func TestExportIsFlatAndImported(t *testing.T) {
	content := pages(700, 1)
	dir, s := exported(t, content)
	want := []string{stateFile, manifestFile, pagesFile, pagesMetaFile}
	slices.Sort(want)
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Errorf("exported %v, want %v", got, want)
	}
	put(t, dir, "spec.dump", nil) // an archiver's own
	e, err := OpenExport(dir)
	if err != nil {
		t.Fatal(err)
	}
	if m, ok := e.Manifest(); !ok || m.ID != s.Manifest().ID || m.Sequence != s.Sequence() {
		t.Errorf("manifest %v %+v", ok, m)
	}
	again, err := importFrom(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	sameContent(t, again, content)
	sameContent(t, s, content)
}

func TestExportOfASealedOne(t *testing.T) {
	l, dir := open(t, filepath.Join(t.TempDir(), "l")), t.TempDir()
	before := take(t, l, pages(2, 1))
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := in.Export(t.Context(), dir, Manifest{}); !errors.Is(err, ErrNotSealed) {
		t.Errorf("before the seal: %v", err)
	}
	content := pages(300, 2)
	fakeCheckpoint(t, in.ImageDir(), content)
	if _, err := in.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := in.Export(t.Context(), dir, Manifest{Namespace: "default", ID: "c1"}); err != nil {
		t.Fatal(err)
	}
	if err := in.Discard(); err != nil {
		t.Fatal(err)
	}
	if now, err := l.Current(); err != nil || now.Sequence() != before.Sequence() {
		t.Errorf("current is %v, %v", now, err)
	}
	s, err := importFrom(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	sameContent(t, s, content)
}

func TestImportOfRunscsOwn(t *testing.T) {
	dir, content := t.TempDir(), pages(5, 3)
	fakeCheckpoint(t, dir, content)
	s, err := importFrom(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	sameContent(t, s, content)
}

func TestExportOverwritesNothing(t *testing.T) {
	_, s := exported(t, pages(5, 1))
	for _, name := range []string{stateFile, pagesFile, manifestFile} {
		dir := t.TempDir()
		put(t, dir, name, []byte("mine"))
		if err := s.Export(t.Context(), dir); !errors.Is(err, os.ErrExist) {
			t.Errorf("%s: %v", name, err)
		}
		if got := tree(t, dir); !slices.Equal(got, []string{name}) {
			t.Errorf("%s: left %v", name, got)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Export(ctx, t.TempDir()); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

func TestDamagedExports(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"a bit of the pages": func(dir string) error { return flipMiddle(filepath.Join(dir, pagesFile)) },
		"a bit of the state": func(dir string) error { return flipMiddle(filepath.Join(dir, stateFile)) },
		"the manifest":       func(dir string) error { return flipMiddle(filepath.Join(dir, manifestFile)) },
		"shorter":            func(dir string) error { return os.Truncate(filepath.Join(dir, pagesFile), pageSize) },
		"gone":               func(dir string) error { return os.Remove(filepath.Join(dir, pagesMetaFile)) },
	} {
		dir, s := exported(t, pages(700, 1))
		if err := damage(dir); err != nil {
			t.Fatal(err)
		}
		if _, err := importFrom(t, dir); !errors.Is(err, ErrCorrupt) {
			t.Errorf("%s: %v", name, err)
		}
		sameContent(t, s, pages(700, 1))
	}
	dir, s := exported(t, pages(5, 1))
	if err := flipMiddle(filepath.Join(s.ImageDir(), pagesFile)); err != nil {
		t.Fatal(err)
	}
	if err := s.Export(t.Context(), t.TempDir()); !errors.Is(err, ErrCorrupt) {
		t.Errorf("a damaged snapshot was handed out: %v", err)
	}
	if _, err := importFrom(t, dir); err != nil {
		t.Error(err)
	}
}

// flipMiddle changes a byte in the middle of a file.
func flipMiddle(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	return os.WriteFile(path, data, 0o600)
}
