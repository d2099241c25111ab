package snapshot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

var allSteps = []string{"begin", "seal", "manifest", "rename", "sync", "head", "headsync", "drop"}

func TestCommitKeepsExactlyOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns", "hash")
	l := open(t, dir)
	for i := range 3 {
		content := pages(700, byte(i))
		s := take(t, l, content)
		sameContent(t, s, content)
		cur, err := l.Current()
		if err != nil || cur.Sequence() != uint64(i+1) || cur.Manifest().Parent != uint64(i) {
			t.Fatalf("current %+v, %v", cur, err)
		}
		h, err := l.Head()
		if err != nil || h.State != Asleep || h.Sequence != uint64(i+1) || h.ID != "c1" {
			t.Fatalf("head %+v, %v", h, err)
		}
		if err := l.SetState(t.Context(), Awake); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := []string{"3", "3/image", "3/image/checkpoint.img", "3/image/pages.img", "3/image/pages_meta.img", "3/manifest.json", "head.json", "trash"}
	if got := tree(t, dir); !slices.Equal(got, want) {
		t.Fatalf("left %v", got)
	}
}

func TestModes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns", "hash")
	l := open(t, dir)
	take(t, l, pages(2, 1))
	for _, name := range append(tree(t, dir), ".", lockFile) {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		want := os.FileMode(0o600)
		if fi.IsDir() {
			want = 0o700
		}
		if fi.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", name, fi.Mode().Perm(), want)
		}
	}
}

// A kill at any step is what a copy of the directory taken there shows.
func TestKilledAtAnyStep(t *testing.T) {
	before, after := pages(300, 1), pages(300, 2)
	copies := t.TempDir()
	dir := filepath.Join(t.TempDir(), "w")
	armed := false
	l := open(t, dir, WithFault(func(step string) error {
		if armed {
			copyTree(t, dir, filepath.Join(copies, step))
		}
		return nil
	}))
	take(t, l, before)
	armed = true
	take(t, l, after)
	for _, step := range allSteps {
		t.Run(step, func(t *testing.T) {
			committed := step == "headsync" || step == "drop"
			afterKill(t, filepath.Join(copies, step), before, after, committed)
		})
	}
}

func afterKill(t *testing.T, dir string, before, after []byte, committed bool) {
	want, seq := before, uint64(1)
	if committed {
		want, seq = after, 2
	}
	// Torn temporary files are what a kill within a write leaves.
	put(t, dir, atomicfile.TempPrefix+"head.json-123", []byte(`{"format":"hiber`))
	for range 2 { // The second opening finds nothing left to do.
		l := open(t, dir)
		f, err := l.Adopt()
		if err != nil || f.Problem != nil || f.Snapshot == nil || f.Snapshot.Sequence() != seq {
			t.Fatalf("found %+v, %v", f, err)
		}
		sameContent(t, f.Snapshot, want)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		got := tree(t, dir)
		got = slices.DeleteFunc(got, func(n string) bool { return n == trashDir })
		if len(got) != 7 || got[len(got)-1] != headFile {
			t.Fatalf("left %v", got)
		}
	}
	l := open(t, dir)
	if s := take(t, l, after); s.Sequence() != seq+1 {
		t.Fatalf("next sequence %d", s.Sequence())
	}
}

func TestKilledBeforeTheFirstCommit(t *testing.T) {
	copies := t.TempDir()
	dir := filepath.Join(t.TempDir(), "w")
	l := open(t, dir, WithFault(func(step string) error {
		copyTree(t, dir, filepath.Join(copies, step))
		return nil
	}))
	take(t, l, pages(3, 1))
	for _, step := range allSteps[:6] {
		l := open(t, filepath.Join(copies, step))
		if _, err := l.Current(); !errors.Is(err, ErrNone) {
			t.Errorf("%s: %v", step, err)
		}
		if _, err := l.Head(); !errors.Is(err, ErrNoHead) {
			t.Errorf("%s: %v", step, err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if got := tree(t, l.Dir()); len(got) > 1 {
			t.Errorf("%s: left %v", step, got)
		}
	}
}

// An error at any step leaves the snapshot before in place.
func TestFailureAtAnyStep(t *testing.T) {
	for _, step := range allSteps[:7] {
		for _, cause := range []error{syscall.EIO, syscall.ENOSPC} {
			t.Run(fmt.Sprint(step, "/", cause), func(t *testing.T) { failAt(t, step, cause) })
		}
	}
}

func failAt(t *testing.T, step string, cause error) {
	dir := filepath.Join(t.TempDir(), "w")
	failing := ""
	l := open(t, dir, WithFault(func(s string) error {
		if s == failing {
			return cause
		}
		return nil
	}))
	before := pages(10, 1)
	take(t, l, before)
	if err := l.SetState(t.Context(), Awake); err != nil {
		t.Fatal(err)
	}
	head, _ := l.Head()
	failing = step
	_, err := tryTake(t, l, pages(10, 2))
	if !errors.Is(err, cause) || errors.Is(err, ErrNoSpace) != (cause == syscall.ENOSPC) {
		t.Fatalf("error %v", err)
	}
	if h, err := l.Head(); err != nil || h.State != Awake || h.Sequence != 1 || !h.Time.Equal(head.Time) {
		t.Fatalf("head %+v, %v", h, err)
	}
	cur, err := l.Current()
	if err != nil {
		t.Fatal(err)
	}
	sameContent(t, cur, before)
	l.cleaning.Wait()
	if got := tree(t, dir); slices.Contains(got, incomingDir) || slices.Contains(got, "2") {
		t.Fatalf("left %v", got)
	}
	failing = ""
	sameContent(t, take(t, l, pages(10, 3)), pages(10, 3))
}

func TestFailureToDropTheOldIsNoFailure(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	l := open(t, dir, WithFault(func(s string) error {
		if s == "drop" {
			return syscall.EIO
		}
		return nil
	}))
	take(t, l, pages(4, 1))
	take(t, l, pages(4, 2))
	if !slices.Contains(tree(t, dir), "1") {
		t.Fatal("the fault did not work")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	if slices.Contains(tree(t, dir), "1") {
		t.Fatal("the old snapshot leaked")
	}
}

func TestCommitIsAbortedByItsContext(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	fakeCheckpoint(t, in.ImageDir(), pages(2, 1))
	if _, err := in.Seal(t.Context()); err != nil {
		t.Fatal(err)
	}
	why := errors.New("traffic")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := in.Commit(ctx, Manifest{}); !errors.Is(err, why) {
		t.Fatal(err)
	}
	if _, err := l.Head(); !errors.Is(err, ErrNoHead) {
		t.Fatal(err)
	}
}

func TestCommitNeedsSealAndEpoch(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	in, err := l.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := in.Commit(t.Context(), Manifest{}); !errors.Is(err, ErrNotSealed) {
		t.Fatal(err)
	}
	if err := l.SetEpoch(t.Context(), 5); err != nil {
		t.Fatal(err)
	}
	if err := l.SetEpoch(t.Context(), 4); !errors.Is(err, ErrEpoch) {
		t.Fatal(err)
	}
	if _, err := tryTake(t, l, pages(2, 1)); !errors.Is(err, ErrEpoch) {
		t.Fatal(err)
	}
}

func TestBeginClearsAnEarlierIncoming(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "w"))
	for range 2 {
		in, err := l.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if e, err := os.ReadDir(in.ImageDir()); err != nil || len(e) != 0 {
			t.Fatalf("not empty: %v, %v", e, err)
		}
		put(t, in.ImageDir(), "half", []byte("x"))
	}
}

func TestSetStateSurvivesReopening(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	at := time.Date(2026, 11, 30, 12, 0, 0, 0, time.FixedZone("x", 3600))
	l := open(t, dir, WithOwner("ns", "c9", "db"), WithClock(func() time.Time { return at }))
	if err := l.SetState(t.Context(), Asleep); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("asleep without a snapshot: %v", err)
	}
	if err := l.SetState(t.Context(), Ended); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	h, err := open(t, dir).Head()
	want := Head{Version: 1, State: Ended, Time: at.UTC(), Namespace: "ns", ID: "c9", Identity: "db", Lineage: h.Lineage}
	if err != nil || fmt.Sprint(h) != fmt.Sprint(want) {
		t.Fatalf("%+v, %v", h, err)
	}
}

// TestLineage: a chain of snapshots keeps its name through all that is written, and the next one in the directory has another.
func TestLineage(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	of := func(l *Local) string {
		t.Helper()
		h, err := l.Head()
		if err != nil || len(h.Lineage) != 32 {
			t.Fatalf("lineage %q, %v", h.Lineage, err)
		}
		return h.Lineage
	}
	l := open(t, dir)
	first := take(t, l, pages(4, 1)).Manifest().Lineage
	if err := l.SetState(t.Context(), Awake); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir)
	if second := take(t, l, pages(4, 2)).Manifest().Lineage; second != first || of(l) != first {
		t.Errorf("lineage %s, then %s, and %s in the head", first, second, of(l))
	}
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	again := open(t, dir)
	if err := again.SetState(t.Context(), Awake); err != nil {
		t.Fatal(err)
	}
	next := of(again)
	if err := again.QuarantineHead("test"); err != nil {
		t.Fatal(err)
	}
	if next == first || of(again) == next || take(t, again, pages(4, 3)).Manifest().Lineage != of(again) {
		t.Errorf("lineages %s, %s, %s", first, next, of(again))
	}
}

func TestRemoveLeavesNothing(t *testing.T) {
	root := t.TempDir()
	dir := DirFor(root, "default", "c1", "")
	l := open(t, dir)
	take(t, l, pages(4, 1))
	if err := l.Remove(); err != nil {
		t.Fatal(err)
	}
	if _, err := Inspect(dir); !errors.Is(err, ErrNoHead) {
		t.Fatal(err)
	}
	again := open(t, dir) // Before the first is closed.
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := again.SetState(t.Context(), Awake); err != nil {
		t.Fatal(err)
	}
	for _, name := range tree(t, root) {
		if strings.Contains(name, removedPrefix) {
			t.Errorf("left %s", name)
		}
	}
	if dirs, err := List(root); err != nil || !slices.Equal(dirs, []string{dir}) {
		t.Fatalf("%v, %v", dirs, err)
	}
}
