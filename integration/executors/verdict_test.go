package executors

import (
	"net/netip"
	"testing"
	"time"
)

var (
	placeA = Place{"a", netip.MustParseAddr("10.0.0.2")}
	placeB = Place{"b", netip.MustParseAddr("10.0.1.2")}
)

// tape is beats as a witness may hear them.
type tape struct {
	at    time.Time
	beats []Beat
}

// run has a copy tell so many beats at a place, from a count on.
func (t *tape) run(p Place, nonce string, from uint64, n int) {
	for i := range n {
		t.beats = append(t.beats, Beat{At: t.at.Add(time.Duration(i) * 40 * time.Millisecond), Place: p, Nonce: nonce, N: from + uint64(i)})
	}
}

func (t *tape) wait(d time.Duration) { t.at = t.at.Add(d) }

// TestVerdict: what a witness hears, and what it comes to.
func TestVerdict(t *testing.T) {
	const some = -1
	start := time.Unix(1000, 0)
	thaws := func(d time.Duration) []Thaw { return []Thaw{{"a", start.Add(d)}} }
	for name, c := range map[string]struct {
		play                     func(*tape)
		thaws                    []Thaw
		doubles, setbacks, words int
	}{
		"to and fro": {play: func(t *tape) {
			for i, p := range []Place{placeA, placeB, placeA} {
				t.run(p, "x", 1+uint64(i)*10, 10)
				t.wait(600 * time.Millisecond)
			}
		}},
		"lost packets": {play: func(t *tape) {
			t.run(placeA, "x", 1, 10)
			t.wait(time.Second)
			t.run(placeA, "x", 15, 10)
		}},
		"a late packet": {play: func(t *tape) {
			t.run(placeA, "x", 1, 1)
			t.run(placeA, "x", 3, 6)
			t.wait(210 * time.Millisecond)
			t.run(placeA, "x", 2, 1)
			t.wait(time.Second)
			t.run(placeA, "x", 9, 10)
		}},
		"back to the second": {play: func(t *tape) {
			t.run(placeA, "x", 1, 8)
			t.wait(time.Second)
			t.run(placeA, "x", 2, 10)
		}, setbacks: 1},
		"back to the second, which was lost": {play: func(t *tape) {
			t.run(placeA, "x", 1, 1)
			t.run(placeA, "x", 3, 6)
			t.wait(time.Second)
			t.run(placeA, "x", 2, 10)
		}, setbacks: 1},
		"beside each other": {play: func(t *tape) {
			t.run(placeA, "x", 1, 100)
			t.wait(time.Second)
			t.run(placeB, "x", 26, 50)
		}, doubles: 1, setbacks: some},
		"beside each other, afresh": {play: func(t *tape) {
			t.run(placeA, "x", 1, 100)
			t.wait(time.Second)
			t.run(placeB, "y", 1, 5)
		}, doubles: 1, setbacks: some},
		"one word in between": {play: func(t *tape) {
			t.run(placeA, "x", 1, 100)
			t.wait(time.Second + 10*time.Millisecond)
			t.run(placeB, "x", 101, 1)
		}, doubles: 1, setbacks: some},
		"in two pods of one node": {play: func(t *tape) {
			t.run(placeA, "x", 1, 100)
			t.wait(time.Second)
			t.run(Place{"a", placeB.Address}, "x", 200, 5)
		}, doubles: 1, setbacks: some},
		"an older state": {play: func(t *tape) {
			t.run(placeA, "x", 1, 10)
			t.wait(5 * time.Second)
			t.run(placeB, "x", 5, 10)
		}, setbacks: 1},
		"afresh": {play: func(t *tape) {
			t.run(placeA, "x", 1, 10)
			t.wait(5 * time.Second)
			t.run(placeB, "y", 11, 10)
		}, setbacks: 1},
		"a last word": {play: func(t *tape) {
			t.run(placeA, "x", 1, 10)
			t.wait(5 * time.Second)
			t.run(placeB, "x", 5, 100)
			t.wait(2 * time.Second)
			t.run(placeA, "x", 11, 3)
		}, thaws: thaws(6990 * time.Millisecond), setbacks: 1, words: 3},
		"no last word": {play: func(t *tape) {
			t.run(placeA, "x", 1, 10)
			t.wait(5 * time.Second)
			t.run(placeB, "x", 5, 100)
			t.wait(2 * time.Second)
			t.run(placeA, "x", 11, 3)
		}, thaws: thaws(5 * time.Second), doubles: 1, setbacks: some},
	} {
		t.Run(name, func(t *testing.T) {
			tape := &tape{at: start}
			c.play(tape)
			v := judge(tape.beats, c.thaws)
			if len(v.Doubles) != c.doubles || c.setbacks != some && len(v.Setbacks) != c.setbacks || v.Words != c.words {
				t.Errorf("%d doubles, %d setbacks, %d words: %v %v", len(v.Doubles), len(v.Setbacks), v.Words, v.Doubles, v.Setbacks)
			}
		})
	}
}
