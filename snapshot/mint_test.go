package snapshot

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// siblingOf names a directory beside that of l.
func siblingOf(l *Local, name string) string { return filepath.Join(filepath.Dir(l.Dir()), name) }

func inode(t *testing.T, path string) (number uint64, links uint64) {
	t.Helper()
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	sys := st.Sys().(*syscall.Stat_t)
	return sys.Ino, uint64(sys.Nlink)
}

func TestMintSharesFilesAndNothingElse(t *testing.T) {
	l, content := open(t, filepath.Join(t.TempDir(), "parent")), pages(700, 1)
	s := take(t, l, content)
	dir := siblingOf(l, "child")
	m := s.Manifest()
	m.ID, m.Identity, m.Origin = "", "one", &Origin{Namespace: m.Namespace, ID: m.ID, Lineage: m.Lineage, Sequence: s.Sequence()}
	if err := Mint(t.Context(), dir, s.Image(), m, WithOwner("default", "", "one")); err != nil {
		t.Fatal(err)
	}
	c := open(t, dir)
	got, err := c.Current()
	if err != nil {
		t.Fatal(err)
	}
	sameContent(t, got, content)
	if err := got.Verify(t.Context()); err != nil {
		t.Error(err)
	}
	a, _ := inode(t, filepath.Join(s.ImageDir(), pagesFile))
	b, links := inode(t, filepath.Join(got.ImageDir(), pagesFile))
	if a != b || links != 2 {
		t.Errorf("pages are inode %d and %d, with %d links", a, b, links)
	}
	head, err := c.Head()
	if err != nil {
		t.Fatal(err)
	}
	parent, _ := l.Head()
	if head.State != Asleep || head.Identity != "one" || head.Sequence != 1 || head.Lineage == "" || head.Lineage == parent.Lineage {
		t.Errorf("head %+v", head)
	}
	if o := got.Manifest().Origin; o == nil || o.Lineage != parent.Lineage || o.Sequence != s.Sequence() {
		t.Errorf("origin %+v", o)
	}

	// Each goes its own way: the parent's next snapshot takes nothing from the child, and the other way round.
	take(t, l, pages(3, 2))
	l.cleaning.Wait()
	sameContent(t, got, content)
	other := take(t, c, pages(4, 3))
	sameContent(t, other, pages(4, 3))
	if _, err := os.Stat(got.ImageDir()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the child's first snapshot is still there: %v", err)
	}
}

func TestMintOfWhatIsSealedOnly(t *testing.T) {
	l, content := open(t, filepath.Join(t.TempDir(), "parent")), pages(30, 1)
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Image(); !errors.Is(err, ErrNotSealed) {
		t.Errorf("before the seal: %v", err)
	}
	fakeCheckpoint(t, in.ImageDir(), content)
	if _, err := in.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	image, err := in.Image()
	if err != nil {
		t.Fatal(err)
	}
	dirs := []string{siblingOf(l, "one"), siblingOf(l, "two")}
	for _, dir := range dirs {
		if err := Mint(t.Context(), dir, image, Manifest{Namespace: "default", Identity: filepath.Base(dir)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := in.Discard(); err != nil {
		t.Fatal(err)
	}
	for _, dir := range dirs {
		found, err := Inspect(dir)
		if err != nil || found.Snapshot == nil {
			t.Fatalf("%+v %v", found, err)
		}
		sameContent(t, found.Snapshot, content)
	}
}

func TestMintLeavesWhatIsThere(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "parent"))
	s := take(t, l, pages(30, 1))
	taken := open(t, siblingOf(l, "taken"))
	before := take(t, taken, pages(5, 2))
	dir := taken.Dir()
	if err := Mint(t.Context(), dir, s.Image(), s.Manifest()); !errors.Is(err, ErrBusy) {
		t.Errorf("while it is open: %v", err)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	if err := Mint(t.Context(), dir, s.Image(), s.Manifest()); !errors.Is(err, ErrTaken) {
		t.Errorf("a workload that is there: %v", err)
	}
	sameContent(t, before, pages(5, 2))
}

func TestMintOfDamagedFilesLeavesNothing(t *testing.T) {
	for name, damage := range map[string]func(t *testing.T, path string){
		"missing": func(t *testing.T, path string) { must(t, os.Remove(path)) },
		"shorter": func(t *testing.T, path string) { must(t, os.Truncate(path, 4096)) },
		"symbolic": func(t *testing.T, path string) {
			must(t, os.Rename(path, path+"x"))
			must(t, os.Symlink(path+"x", path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, filepath.Join(t.TempDir(), "parent"))
			s := take(t, l, pages(30, 1))
			damage(t, filepath.Join(s.ImageDir(), pagesFile))
			dir := siblingOf(l, "child")
			err := Mint(t.Context(), dir, s.Image(), s.Manifest())
			if !errors.Is(err, os.ErrNotExist) && !errors.Is(err, ErrCorrupt) {
				t.Errorf("error %v", err)
			}
			if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("something is left: %v", tree(t, dir))
			}
		})
	}
}

func TestMintOnAFullDisk(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "parent"))
	s := take(t, l, pages(30, 1))
	for _, step := range []string{"begin", "seal", "manifest", "rename", "sync", "head", "headsync"} {
		dir := siblingOf(l, "child")
		err := Mint(t.Context(), dir, s.Image(), s.Manifest(), WithFault(func(at string) error {
			if at == step {
				return syscall.ENOSPC
			}
			return nil
		}))
		if !errors.Is(err, ErrNoSpace) {
			t.Errorf("%s: %v", step, err)
		}
		if err := Mint(t.Context(), dir, s.Image(), s.Manifest()); err != nil {
			t.Errorf("after a failure of %s: %v", step, err)
		}
		must(t, os.RemoveAll(dir))
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
