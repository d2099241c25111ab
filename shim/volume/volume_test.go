package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tree is a directory with files, all of one age.
func tree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	must(t, os.MkdirAll(filepath.Join(dir, "a/b"), 0o755))
	for _, name := range []string{"a/b/one", "a/two", "three"} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(name), 0o644))
	}
	must(t, os.Symlink("three", filepath.Join(dir, "link")))
	return dir
}

func see(t *testing.T, dir string) Print {
	t.Helper()
	p, err := Look(t.Context(), dir, Most)
	must(t, err)
	return p
}

// Whatever a program does to a file is seen, also where it puts the time back; what it does to itself is not.
func TestLookSeesChanges(t *testing.T) {
	old := time.Now().Add(-time.Hour)
	at := filepath.Join
	for name, change := range map[string]func(dir string) error{
		"content": func(dir string) error { return os.WriteFile(at(dir, "three"), []byte("four!"), 0o644) },
		"content, and its time put back": func(dir string) error {
			info, err := os.Stat(at(dir, "a/two"))
			must(t, err)
			return errors.Join(os.WriteFile(at(dir, "a/two"), []byte("A/TWO"), 0o644), os.Chtimes(at(dir, "a/two"), info.ModTime(), info.ModTime()))
		},
		"time":            func(dir string) error { return os.Chtimes(at(dir, "three"), old, old) },
		"removed":         func(dir string) error { return os.Remove(at(dir, "a/b/one")) },
		"added":           func(dir string) error { return os.WriteFile(at(dir, "a/b/two"), nil, 0o644) },
		"empty directory": func(dir string) error { return os.Mkdir(at(dir, "a/c"), 0o755) },
		"renamed":         func(dir string) error { return os.Rename(at(dir, "a/two"), at(dir, "a/three")) },
		"replaced": func(dir string) error {
			return errors.Join(os.WriteFile(at(dir, "a/new"), []byte("three"), 0o644), os.Rename(at(dir, "a/new"), at(dir, "three")))
		},
		"link": func(dir string) error {
			return errors.Join(os.Remove(at(dir, "link")), os.Symlink("a/two", at(dir, "link")))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := tree(t)
			before := see(t, dir)
			if before.Entries != 6 || before.More || before.Empty() {
				t.Fatalf("it has seen %+v", before)
			}
			for end := time.Now(); !time.Now().After(end.Add(10 * time.Millisecond)); { // the kernel's clock of files is a coarse one
			}
			for _, f := range []string{"three", "a"} { // as a reader does
				_, err := os.ReadDir(at(dir, "a"))
				must(t, err)
				_, err = os.Stat(at(dir, f))
				must(t, err)
			}
			if again := see(t, dir); !again.Same(before) || again != before {
				t.Fatalf("nothing has changed: %+v, %+v", before, again)
			}
			must(t, change(dir))
			if after := see(t, dir); after.Same(before) {
				t.Errorf("nothing was seen: %+v", after)
			}
		})
	}
}

func TestLookAtAFile(t *testing.T) {
	dir := tree(t)
	before := see(t, filepath.Join(dir, "three"))
	must(t, os.WriteFile(filepath.Join(dir, "three"), []byte("more of it"), 0o644))
	if after := see(t, filepath.Join(dir, "three")); before.Entries != 1 || before.Empty() || after.Same(before) {
		t.Errorf("%+v, %+v", before, after)
	}
	if p := see(t, t.TempDir()); !p.Empty() {
		t.Errorf("an empty directory is %+v", p)
	}
	if _, err := Look(t.Context(), filepath.Join(dir, "none"), Most); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing is there: %v", err)
	}
}

// Of many files the same first ones are looked at each time, and that there are more is told.
func TestLookIsBounded(t *testing.T) {
	dir := t.TempDir()
	for i := range 50 {
		must(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d", i)), nil, 0o644))
	}
	first, err := Look(t.Context(), dir, 20)
	must(t, err)
	if first.Entries != 20 || !first.More || first.Empty() {
		t.Fatalf("%+v", first)
	}
	must(t, os.WriteFile(filepath.Join(dir, "40"), []byte("not seen"), 0o644))
	if again, err := Look(t.Context(), dir, first.Entries); err != nil || !again.Same(first) {
		t.Errorf("%+v, %v", again, err)
	}
	must(t, os.WriteFile(filepath.Join(dir, "05"), []byte("seen"), 0o644))
	if again, err := Look(t.Context(), dir, first.Entries); err != nil || again.Same(first) {
		t.Errorf("%+v, %v", again, err)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if p, err := Look(over, dir, Most); err != nil || !p.More || p.Entries != 0 || p.Empty() {
		t.Errorf("without time: %+v, %v", p, err)
	}
}

// A source that doesn't answer, here a FIFO that nobody writes to, is waited for no longer than there is time.
func TestSyncOfASilentSource(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	must(t, syscall.Mkfifo(fifo, 0o600))
	why := errors.New("long enough")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 50*time.Millisecond, why)
	defer cancel()
	done, err := Sync(ctx, fifo)
	if !errors.Is(err, why) {
		t.Fatalf("%v", err)
	}
	select {
	case <-done:
		t.Error("it has ended")
	default:
	}
	f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
	must(t, err)
	must(t, f.Close())
	<-done
}

func TestSync(t *testing.T) {
	done, err := Sync(t.Context(), tree(t))
	must(t, err)
	<-done
	if _, err := Sync(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("nothing is there: %v", err)
	}
}

func BenchmarkLook(b *testing.B) {
	dir := b.TempDir()
	for i := range 10000 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o644); err != nil {
			b.Fatal(err)
		}
	}
	for b.Loop() {
		if _, err := Look(b.Context(), dir, Most); err != nil {
			b.Fatal(err)
		}
	}
}
