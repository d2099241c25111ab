package snapshot

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestHeadThatCannotBeRead(t *testing.T) {
	newer, err := encodeDocument(headFormat, HeadVersion+1, map[string]any{"state": "dreaming"})
	if err != nil {
		t.Fatal(err)
	}
	bad, err := encodeDocument(headFormat, HeadVersion, Head{State: "dreaming"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		data []byte
		want error
	}{
		"newer":         {newer, ErrVersion},
		"empty":         {nil, ErrCorrupt},
		"torn":          {newer[:20], ErrCorrupt},
		"another file":  {[]byte(`{"format":"x","version":1}`), ErrCorrupt},
		"unknown state": {bad, ErrCorrupt},
		"changed":       {[]byte(strings.Replace(string(bad), "dreaming", "dreamin0", 1)), ErrCorrupt},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "w")
			l := open(t, dir)
			take(t, l, pages(2, 1))
			put(t, dir, headFile, c.data)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = open(t, dir) // Opens, and touches nothing.
			unreadable(t, l, c.want)
			if _, err := os.Stat(filepath.Join(dir, "1", manifestFile)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func unreadable(t *testing.T, l *Local, want error) {
	t.Helper()
	_, err := l.Head()
	_, cerr := l.Current()
	_, berr := l.Begin(t.Context())
	serr := l.SetState(t.Context(), Awake)
	for _, err := range []error{err, cerr, berr, serr} {
		if !errors.Is(err, want) {
			t.Fatalf("%v, want %v", err, want)
		}
	}
	if want == ErrVersion && !strings.Contains(err.Error(), "version 2, this program knows up to 1") {
		t.Fatal(err)
	}
	if f, err := l.Adopt(); err != nil || !errors.Is(f.Problem, want) || f.Snapshot != nil {
		t.Fatalf("%+v, %v", f, err)
	}
}

func TestQuarantineHeadStartsAbove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	l := open(t, dir, WithOwner("ns", "c1", ""))
	take(t, l, pages(2, 1))
	put(t, dir, headFile, []byte("{"))
	if err := l.QuarantineHead("bad JSON"); err != nil {
		t.Fatal(err)
	}
	f, err := l.Adopt()
	if err != nil || f.Head.State != Awake || f.Head.ID != "c1" || f.Snapshot != nil || f.Kept == nil {
		t.Fatalf("%+v, %v", f, err)
	}
	if q, err := l.Quarantined(); err != nil || len(q) != 1 || q[0].Sequence != 0 || q[0].Reason != "bad JSON" {
		t.Fatalf("%+v, %v", q, err)
	}
	if s := take(t, l, pages(2, 2)); s.Sequence() != 2 {
		t.Fatal(s.Sequence())
	}
}

func TestAdoptDependsOnTheState(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	l := open(t, dir)
	if f, err := l.Adopt(); err != nil || !reflect.DeepEqual(f, Found{}) {
		t.Fatalf("%+v, %v", f, err)
	}
	take(t, l, pages(2, 1))
	for _, s := range []State{Asleep, Awake, Ended} {
		if err := l.SetState(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		f, err := Inspect(dir) // While it is open.
		if err != nil || f.Head.State != s || (f.Snapshot != nil) != (s == Asleep) || (f.Kept != nil) != (s != Asleep) {
			t.Fatalf("%s: %+v, %v", s, f, err)
		}
	}
}

// An older snapshot is not thrown away while the current one is unreadable.
func TestRecoveryKeepsTheLastHope(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	l := open(t, dir, WithFault(func(s string) error {
		if s == "drop" {
			return errors.New("kept")
		}
		return nil
	}))
	take(t, l, pages(2, 1))
	take(t, l, pages(2, 2))
	put(t, l.sequencePath(2), manifestFile, []byte("{}"))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir)
	s, rejected, err := l.Choose(t.Context())
	if err != nil || s.Sequence() != 1 || len(rejected) != 1 {
		t.Fatalf("%v, %v, %v", s, rejected, err)
	}
}

func TestLockNamesItsHolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns", "w")
	l := open(t, dir)
	_, err := OpenLocal(dir)
	var busy *BusyError
	if !errors.Is(err, ErrBusy) || !errors.As(err, &busy) || busy.Pid != os.Getpid() {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), fmt.Sprint("pid ", os.Getpid())) {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

const holdEnv = "SNAPSHOT_TEST_HOLD"

// TestHold is the other process of TestLockEndsWithItsProcess. It ends with the one that started it, when it isn't killed.
func TestHold(t *testing.T) {
	dir := os.Getenv(holdEnv)
	if dir == "" {
		return
	}
	open(t, dir)
	fmt.Println("holding")
	_, _ = io.Copy(io.Discard, os.Stdin) // not select: a process of which nothing can happen any more is ended as deadlocked
}

func TestLockEndsWithItsProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "w")
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestHold$")
	cmd.Env = append(os.Environ(), holdEnv+"="+dir)
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "holding\n" {
		t.Fatal(line, err)
	}
	var busy *BusyError
	if _, err := OpenLocal(dir); !errors.As(err, &busy) || busy.Pid != cmd.Process.Pid {
		t.Fatalf("the lock of a process that runs: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // Killed.
	open(t, dir)
}

func TestDirFor(t *testing.T) {
	a := DirFor("/data", "k8s.io", "c1", "")
	if !strings.HasPrefix(a, "/data/k8s.io/") || len(filepath.Base(a)) != 32 {
		t.Fatal(a)
	}
	all := []string{
		a,
		DirFor("/data", "k8s.io", "c2", ""),
		DirFor("/data", "default", "c1", ""),
		DirFor("/data", "k8s.io", "c1", "c1"),
		DirFor("/data", "../x", "c1", ""),
	}
	slices.Sort(all)
	if len(slices.Compact(all)) != 5 {
		t.Fatalf("%v are not all different", all)
	}
	if DirFor("/data", "k8s.io", "c1", "db") != DirFor("/data", "k8s.io", "c2", "db") {
		t.Fatal("an identity depends on its container")
	}
	for _, ns := range []string{"../x", "", ".", "..", "a/b", strings.Repeat("a", 101)} {
		d := DirFor("/data", ns, "c", "")
		if filepath.Dir(filepath.Dir(d)) != "/data" || !strings.HasPrefix(filepath.Base(filepath.Dir(d)), "~") {
			t.Errorf("%q goes to %s", ns, d)
		}
	}
}

func TestUnderAnEpoch(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir, WithOwner("ns", "first", "shop/db"))
	if err := l.SetState(t.Context(), Awake); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = open(t, dir, WithOwner("ns", "second", "shop/db"))
	l.Under(7, 40)
	l.Under(5, 30) // neither falls
	if err := l.SetState(t.Context(), Awake); err != nil {
		t.Fatal(err)
	}
	h, err := l.Head()
	if err != nil || h.Epoch != 7 || h.ID != "second" || h.Identity != "shop/db" || h.Sequence != 0 {
		t.Errorf("head %+v, %v", h, err)
	}
	in, err := l.Begin(t.Context())
	if err != nil || in.Sequence() != 41 {
		t.Errorf("the next snapshot is %d, %v; want 41", in.Sequence(), err)
	}
}
