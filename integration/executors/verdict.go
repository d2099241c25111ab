package executors

import (
	"fmt"
	"slices"
	"time"
)

// together is how close two beats of one place are that nothing legal comes between: two ways from place to place take a checkpoint, a restore and two
// starts of sandboxes, which is several times as much on any machine.
const together = 200 * time.Millisecond

// lastWord is how long after the thaw of a whole node what ran there may still be heard.
const lastWord = time.Second

// A Double is two copies that ran at once.
type Double struct {
	First, Last time.Time
	Between     Place // the beats of which came between those of
	Of          Place
	Beats       int
}

func (d Double) String() string {
	return fmt.Sprintf("%s ran while %s did: %d beats within %v, from %s on", d.Between, d.Of, d.Beats, d.Last.Sub(d.First).Round(time.Millisecond), d.First.Format("05.000"))
}

// A Setback is a beat that doesn't go on where the one before was.
type Setback struct {
	Before, Beat Beat
}

func (s Setback) String() string {
	if s.Before.Nonce != s.Beat.Nonce {
		return fmt.Sprintf("another memory at %s, at beat %d (counter %d), after beat %d (counter %d) at %s", s.Beat.Place, s.Beat.N, s.Beat.Counter, s.Before.N, s.Before.Counter, s.Before.Place)
	}
	return fmt.Sprintf("beat %d (counter %d) at %s after %d (counter %d) at %s", s.Beat.N, s.Beat.Counter, s.Beat.Place, s.Before.N, s.Before.Counter, s.Before.Place)
}

// A Thaw is the end of a time in which a whole node was stopped.
type Thaw struct {
	Node string
	At   time.Time
}

// Verdict is what beats tell.
type Verdict struct {
	Doubles  []Double
	Setbacks []Setback
	Words    int // beats of nodes that had just been thawed, which another copy had overtaken
	Late     int // packets that others overtook on their way
}

// judge looks through the beats of one identity. Thaws excuse the last words of what ran there.
func judge(beats []Beat, thaws []Thaw) (v Verdict) {
	beats = slices.Clone(beats)
	slices.SortStableFunc(beats, func(a, b Beat) int { return a.At.Compare(b.At) })
	beats, v.Words = withoutLastWords(beats, thaws)
	beats, v.Late = withoutLate(beats)
	v.Doubles = doubles(beats)
	for i, b := range beats {
		if i == 0 {
			continue
		}
		if before := beats[i-1]; b.Nonce != before.Nonce || b.N <= before.N {
			v.Setbacks = append(v.Setbacks, Setback{before, b})
		}
	}
	return v
}

// doubles finds beats between two of another place that are together.
func doubles(beats []Beat) (all []Double) {
	newest := make(map[Place]int) // index of its newest beat
	for i, b := range beats {
		before, ok := newest[b.Place]
		newest[b.Place] = i
		if !ok || b.At.Sub(beats[before].At) > together {
			continue
		}
		for _, other := range beats[before+1 : i] {
			all = add(all, b.Place, other)
		}
	}
	return all
}

// add counts a beat that came between those of a place, with others of a moment ago, whichever of the two was between.
func add(all []Double, of Place, between Beat) []Double {
	if n := len(all) - 1; n >= 0 && between.At.Sub(all[n].Last) < time.Second {
		d := &all[n]
		if pair := [2]Place{d.Of, d.Between}; pair == [2]Place{of, between.Place} || pair == [2]Place{between.Place, of} {
			d.Last = between.At
			d.Beats++
			return all
		}
	}
	return append(all, Double{First: between.At, Last: between.At, Between: between.Place, Of: of, Beats: 1})
}

// withoutLate takes out packets that later ones of their copy have overtaken, as what is kept until a gate opens: they come while that is heard, and had not been
// heard.
func withoutLate(beats []Beat) (kept []Beat, late int) {
	type told struct {
		nonce string
		n     uint64
	}
	heard := make(map[told]bool)
	var newest Beat
	for _, b := range beats {
		again := heard[told{b.Nonce, b.N}]
		heard[told{b.Nonce, b.N}] = true
		if b.Place == newest.Place && b.Nonce == newest.Nonce && b.N < newest.N && !again && b.At.Sub(newest.At) < together {
			late++
			continue
		}
		kept, newest = append(kept, b), b
	}
	return kept, late
}

// withoutLastWords takes out what a thawed node said in its first moment, when another node had it already.
func withoutLastWords(beats []Beat, thaws []Thaw) (kept []Beat, words int) {
	for _, b := range beats {
		if n := len(kept); n > 0 && kept[n-1].Place.Node != b.Place.Node && thawed(b, thaws) {
			words++
			continue
		}
		kept = append(kept, b)
	}
	return kept, words
}

func thawed(b Beat, thaws []Thaw) bool {
	return slices.ContainsFunc(thaws, func(t Thaw) bool {
		return t.Node == b.Place.Node && !b.At.Before(t.At) && b.At.Sub(t.At) < lastWord
	})
}
