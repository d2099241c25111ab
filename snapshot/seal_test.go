package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

func begin(t testing.TB, l *Local, content []byte) *Incoming {
	t.Helper()
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fakeCheckpoint(t, in.ImageDir(), content)
	return in
}

func TestSealIsDeterministic(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	content := pages(256*5+3, 9) // 5 MiB and 3 pages
	var first Sealed
	for i := range 4 {
		s, err := begin(t, l, content).Seal(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			first = s
		}
		if !reflect.DeepEqual(s.Files, first.Files) || s.Size != first.Size {
			t.Fatal("two seals of the same files differ")
		}
	}
	if first.Memory != uint64(len(content)) {
		t.Fatalf("memory %d, want %d", first.Memory, len(content))
	}
	names := []string{first.Files[0].Name, first.Files[1].Name, first.Files[2].Name}
	if !slices.Equal(names, []string{stateFile, pagesFile, pagesMetaFile}) || len(first.Files[1].CRC32C) != 6 {
		t.Fatalf("files %v", names)
	}
}

func TestSealRefusesWhatDoesNotFit(t *testing.T) {
	content := pages(40, 1)
	cases := map[string]struct {
		change func(t *testing.T, dir string)
		want   error
	}{
		"pages one page short": {func(t *testing.T, d string) { truncate(t, d, pagesFile, -pageSize) }, ErrTruncated},
		"pages one byte short": {func(t *testing.T, d string) { truncate(t, d, pagesFile, -1) }, ErrTruncated},
		"pages empty":          {func(t *testing.T, d string) { put(t, d, pagesFile, nil) }, ErrTruncated},
		"pages too long":       {func(t *testing.T, d string) { truncate(t, d, pagesFile, pageSize) }, ErrCorrupt},
		"no pages":             {remove(pagesFile), ErrTruncated},
		"no description":       {remove(pagesMetaFile), ErrTruncated},
		"no state":             {remove(stateFile), ErrTruncated},
		"state is something":   {func(t *testing.T, d string) { put(t, d, stateFile, pages(1, 0)) }, ErrCorrupt},
		"compressed":           {func(t *testing.T, d string) { put(t, d, stateFile, compressedState()) }, ErrCorrupt},
		"a link": {func(t *testing.T, d string) {
			if err := os.Symlink("/etc/passwd", filepath.Join(d, "x")); err != nil {
				t.Fatal(err)
			}
		}, ErrCorrupt},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			l := open(t, filepath.Join(t.TempDir(), "w"))
			in := begin(t, l, content)
			c.change(t, in.ImageDir())
			_, err := in.Seal(t.Context())
			if !errors.Is(err, c.want) || !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
			if got := tree(t, l.Dir()); len(got) != 0 {
				t.Fatalf("left %v", got)
			}
			if _, err := in.Commit(t.Context(), Manifest{}); !errors.Is(err, ErrNotSealed) {
				t.Fatal(err)
			}
		})
	}
}

func compressedState() []byte {
	return slices.Concat(stateMagic, []byte{0, 0, 0, 0, 0, 0, 0, 34}, []byte(`{"compression":"flate-best-speed"}`), graphBytes())
}

func remove(name string) func(*testing.T, string) {
	return func(t *testing.T, dir string) {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func truncate(t *testing.T, dir, name string, by int64) {
	t.Helper()
	path := filepath.Join(dir, name)
	st, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, st.Size()+by); err != nil {
		t.Fatal(err)
	}
}

// Cut off anywhere, neither of the two describing files passes.
func TestEveryTruncationIsSeen(t *testing.T) {
	meta := slices.Concat(memoryFileBytes(8*pageSize, pageSize), graphBytes(), memoryFileBytes(2*pageSize, 0))
	for n := range meta {
		got, err := committedBytes(meta[:n])
		// Cut after the names of the private files it is whole, but then
		// pages.img has more than it says.
		if err == nil && got == 10*pageSize {
			t.Fatalf("%d of %d bytes pass", n, len(meta))
		}
	}
	state := stateBytes(graphBytes(), graphBytes())
	whole := len(stateBytes(graphBytes()))
	for n := range state {
		if err := checkStateFile(state[:n]); err == nil && n != whole {
			t.Fatalf("%d of %d bytes pass", n, len(state))
		}
	}
}

func TestSealStopsWithItsContext(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	in := begin(t, l, pages(10, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := in.Seal(ctx); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestWriteAheadStops(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	in := begin(t, l, pages(10, 1))
	stop := in.WriteAhead()
	stop()
	stop()
	if _, err := in.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
}
