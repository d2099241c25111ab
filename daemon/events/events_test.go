package events

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func open(t *testing.T, opts Options) *Log {
	t.Helper()
	l, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func add(t *testing.T, l *Log, e Event) bool {
	t.Helper()
	fresh, err := l.Append(e)
	if err != nil {
		t.Fatal(err)
	}
	return fresh
}

// numbers are those of all events after one.
func numbers(t *testing.T, l *Log, after uint64) string {
	t.Helper()
	all, _, err := l.Since(after, 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	text := ""
	for _, e := range all {
		text += fmt.Sprintf("%d:%s ", e.Seq, e.ID)
	}
	return text
}

func wake(id, transition string) Event {
	return Event{Namespace: "default", ID: id, Kind: "wake", What: "woken", Transition: transition}
}

func newest(t *testing.T, dir string) string {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*"+suffix))
	if err != nil || len(all) == 0 {
		t.Fatal("no segments", err)
	}
	return all[len(all)-1]
}

func TestNumbersGoOnAfterARestart(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	add(t, l, wake("a", "1"))
	add(t, l, wake("b", "1"))
	again := open(t, Options{Dir: dir})
	add(t, again, wake("c", "1"))
	if got := numbers(t, again, 0); got != "1:a 2:b 3:c " {
		t.Errorf("the log has %q", got)
	}
	if l.ID() != again.ID() {
		t.Error("the log has another id after a restart")
	}
}

func TestATransitionIsLoggedOnce(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	if !add(t, l, wake("a", "1")) || add(t, l, wake("a", "1")) {
		t.Error("told twice, logged other than once")
	}
	l = open(t, Options{Dir: dir})
	if add(t, l, wake("a", "1")) {
		t.Error("logged again after a restart")
	}
	if !add(t, l, wake("b", "1")) || !add(t, l, wake("a", "2")) || !add(t, l, Event{Namespace: "default", ID: "a", Kind: "hibernate", What: "slept", Transition: "2"}) {
		t.Error("what is another's, another one or of another kind isn't logged")
	}
}

// Whatever the end of the file is, what stands before it is kept, and the next number is the next.
func TestATornTailIsCutOff(t *testing.T) {
	dir := t.TempDir()
	l := open(t, Options{Dir: dir})
	add(t, l, wake("a", "1"))
	add(t, l, wake("b", "1"))
	path := newest(t, dir)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_ = l.Close()
	for cut := len(whole) - 1; cut > len(whole)/2+1; cut-- {
		flipped := append([]byte(nil), whole...)
		flipped[cut-1] ^= 1
		for name, damaged := range map[string][]byte{"cut": whole[:cut], "flipped": flipped} {
			if err := os.WriteFile(path, damaged, 0o600); err != nil {
				t.Fatal(err)
			}
			l, err := Open(Options{Dir: dir})
			if err != nil {
				t.Fatal(err)
			}
			add(t, l, wake("c", "1"))
			if got := numbers(t, l, 0); got != "1:a 2:c " {
				t.Fatalf("%s at %d of %d: the log has %q", name, cut, len(whole), got)
			}
			_ = l.Close()
		}
	}
}

func TestTheLogIsBounded(t *testing.T) {
	dir := t.TempDir()
	now := time.Now()
	opts := Options{Dir: dir, SegmentBytes: 1, Segments: 3, MaxAge: time.Hour, Now: func() time.Time { return now }}
	l := open(t, opts)
	add(t, l, wake("once", "1"))
	for i := range 10 {
		add(t, l, wake("a", fmt.Sprint(i)))
	}
	if got := numbers(t, l, 0); got != "9:a 10:a 11:a " {
		t.Errorf("by number: the log has %q", got)
	}
	now = now.Add(2 * time.Hour)
	add(t, l, wake("a", "new"))
	if got := numbers(t, l, 0); got != "12:a " {
		t.Errorf("by age: the log has %q", got)
	}
	if len(l.known) != 1 {
		t.Errorf("%d transitions are remembered of 1 in the log", len(l.known))
	}
	for _, old := range []time.Duration{time.Minute, 2 * time.Hour} {
		e := wake("other", "1")
		e.TimeMs = now.Add(-old).UnixMilli()
		if add(t, l, e) {
			t.Errorf("what was in the log and is no more, of %s ago, is logged again", old)
		}
	}
}

func TestReadersGoOnFromTheirCursor(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), SegmentBytes: 300, Now: func() time.Time { return time.UnixMilli(200) }})
	for i := range 9 {
		add(t, l, Event{Namespace: "default", ID: fmt.Sprint(i), What: Ended, TimeMs: int64(100 + i)})
	}
	var seen []uint64
	for cursor := uint64(2); ; {
		all, next, err := l.Since(cursor, 104, 2)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			seen = append(seen, e.Seq)
		}
		if cursor = next; len(all) == 0 {
			break
		}
	}
	if fmt.Sprint(seen) != "[5 6 7 8 9]" {
		t.Errorf("since 104 ms, after 2: %v", seen)
	}
	if all, _, _ := l.Since(500, 0, 100); len(all) != 9 {
		t.Errorf("another log's cursor gets %d events, want all", len(all))
	}
	changed := l.Changed()
	add(t, l, wake("a", "1"))
	select {
	case <-changed:
	default:
		t.Error("an event is not told")
	}
}

func TestWhatBecameOfATransition(t *testing.T) {
	for _, c := range [][3]string{
		{"hibernate", "slept", "slept"}, {"hibernate", "refused", "refused"}, {"hibernate", "failed", "failed"}, {"wake", "restored", "woken"},
		{"wake", "restored-older", "woken"}, {"wake", "cold-started", "cold"}, {"wake", "blocked", "blocked"}, {"wake", "failed", "lost"},
	} {
		if got := What(c[0], c[1]); got != c[2] {
			t.Errorf("%s %s is %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
