package snapshot

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestVerifyFindsEveryFlippedByte(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	content := pages(256*3+7, 5)
	s := take(t, l, content)
	for _, c := range []struct {
		file  string
		off   int64
		chunk int
	}{
		{pagesFile, 0, 0},
		{pagesFile, ChunkSize - 1, 0},
		{pagesFile, ChunkSize, 1},
		{pagesFile, int64(len(content)) - 1, 3},
		{pagesMetaFile, 12, 0},
		{stateFile, 20, 0},
	} {
		flip(t, filepath.Join(s.ImageDir(), c.file), c.off)
		err := s.Verify(t.Context())
		var ce *CorruptError
		if !errors.Is(err, ErrCorrupt) || errors.Is(err, ErrTruncated) || !errors.As(err, &ce) || ce.File != c.file || ce.Chunk != c.chunk {
			t.Fatalf("%+v: %v", c, err)
		}
		flip(t, filepath.Join(s.ImageDir(), c.file), c.off)
		if err := s.Verify(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func flip(t testing.TB, path string, off int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var b [1]byte
	if _, err := f.ReadAt(b[:], off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], off); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyRefusesOtherFiles(t *testing.T) {
	for name, c := range map[string]struct {
		change func(t *testing.T, dir string)
		want   error
	}{
		"shorter":   {func(t *testing.T, d string) { truncate(t, d, pagesFile, -1) }, ErrTruncated},
		"longer":    {func(t *testing.T, d string) { truncate(t, d, pagesFile, 1) }, ErrCorrupt},
		"missing":   {remove(stateFile), ErrTruncated},
		"one more":  {func(t *testing.T, d string) { put(t, d, "gcs_opts.json", []byte("{}")) }, ErrCorrupt},
		"directory": {func(t *testing.T, d string) { remove(stateFile)(t, d); mkdir(t, d, stateFile) }, ErrCorrupt},
		"all gone": {func(t *testing.T, d string) {
			if err := os.RemoveAll(d); err != nil {
				t.Fatal(err)
			}
		}, ErrTruncated},
	} {
		t.Run(name, func(t *testing.T) {
			l := open(t, filepath.Join(t.TempDir(), "w"))
			s := take(t, l, pages(30, 1))
			c.change(t, s.ImageDir())
			if err := s.Verify(t.Context()); !errors.Is(err, c.want) || !errors.Is(err, ErrCorrupt) {
				t.Fatal(err)
			}
		})
	}
}

func mkdir(t *testing.T, dir, name string) {
	t.Helper()
	if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyStopsWithItsContext(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	s := take(t, l, pages(300, 1))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Verify(ctx); !errors.Is(err, context.Canceled) || errors.Is(err, ErrCorrupt) {
		t.Fatal(err)
	}
}

func TestChooseFallsBackAndQuarantines(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	older, newer := pages(20, 1), pages(20, 2)
	l := open(t, dir, WithFault(func(step string) error {
		if step == "drop" {
			return errors.New("kept for this test")
		}
		return nil
	}))
	take(t, l, older)
	s := take(t, l, newer)
	if c, err := l.Candidates(); err != nil || len(c) != 2 || c[0].Sequence() != 2 {
		t.Fatalf("%v, %v", c, err)
	}
	flip(t, filepath.Join(s.ImageDir(), pagesFile), 4097)

	got, rejected, err := l.Choose(t.Context())
	if err != nil || len(rejected) != 1 || rejected[0].Sequence != 2 || !errors.Is(rejected[0].Err, ErrCorrupt) {
		t.Fatalf("%v, %v, %v", got, rejected, err)
	}
	sameContent(t, got, older)

	put(t, l.sequencePath(1), manifestFile, []byte("{}"))
	got, rejected, err = l.Choose(t.Context())
	if got != nil || len(rejected) != 1 || !errors.Is(err, ErrNone) {
		t.Fatalf("%v, %v, %v", got, rejected, err)
	}
	q, err := l.Quarantined()
	if err != nil || len(q) != 2 || q[0].Sequence != 1 || q[1].Sequence != 2 || !strings.Contains(q[1].Reason, "pages.img: corrupt: chunk 0") {
		t.Fatalf("%+v, %v", q, err)
	}
}

func TestChooseLeavesWhatIsNewerThanItself(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	take(t, l, pages(2, 1))
	data, err := encodeDocument(manifestFormat, ManifestVersion+1, Manifest{})
	if err != nil {
		t.Fatal(err)
	}
	put(t, l.sequencePath(1), manifestFile, data)
	if _, rejected, err := l.Choose(t.Context()); !errors.Is(err, ErrVersion) || len(rejected) != 0 {
		t.Fatalf("%v, %v", rejected, err)
	}
	if f, err := l.Adopt(); err != nil || !errors.Is(f.Problem, ErrVersion) || f.Snapshot != nil {
		t.Fatalf("%+v, %v", f, err)
	}
}

func TestQuarantineIsForGood(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	l := open(t, dir)
	s := take(t, l, pages(2, 1))
	if err := l.Quarantine(s, "restore said: no"); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Current(); !errors.Is(err, ErrNone) {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir)
	if f, err := l.Adopt(); err != nil || !errors.Is(f.Problem, ErrNone) || f.Head.State != Asleep {
		t.Fatalf("%+v, %v", f, err)
	}
	if s := take(t, l, pages(2, 2)); s.Sequence() != 2 {
		t.Fatalf("sequence %d is used again", s.Sequence())
	}
	q, err := l.Quarantined()
	if err != nil || len(q) != 1 || q[0].Sequence != 1 || q[0].Reason != "restore said: no" || q[0].Time.IsZero() {
		t.Fatalf("%+v, %v", q, err)
	}
	if err := l.Purge(Quarantined{Dir: dir}); err == nil {
		t.Fatal("purged something else")
	}
	if err := l.Purge(q[0]); err != nil {
		t.Fatal(err)
	}
	if q, err := l.Quarantined(); err != nil || len(q) != 0 {
		t.Fatalf("%+v, %v", q, err)
	}
}

// TestPurgeBefore: by the time of its name, also where the reason can't be read; what is newer, or has another name, stays.
func TestPurgeBefore(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	l.now = func() time.Time { return now }
	for i := range 3 {
		if err := l.Quarantine(take(t, l, pages(2, byte(i))), "test"); err != nil {
			t.Fatal(err)
		}
		now = now.Add(time.Hour)
	}
	other := l.path(quarantineDir, "2-kept")
	if err := errors.Join(os.Mkdir(other, 0o700), os.Remove(l.path(quarantineDir, "1-20260102T030405.000000000Z.json"))); err != nil {
		t.Fatal(err)
	}
	gone, err := l.PurgeBefore(now.Add(-2 * time.Hour))
	if err != nil || len(gone) != 1 || gone[0].Sequence != 1 {
		t.Fatalf("purged %+v, %v", gone, err)
	}
	left, err := l.Quarantined()
	if err != nil || len(left) != 3 {
		t.Fatalf("left %+v, %v", left, err)
	}
	for _, q := range left {
		if q.Sequence == 1 {
			t.Errorf("%+v is left", q)
		}
	}
	if found, err := filepath.Glob(l.path(quarantineDir, "1-*")); err != nil || len(found) != 0 {
		t.Errorf("left: %v, %v", found, err)
	}
}
