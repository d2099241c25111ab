package moment

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/shim/journal"
)

// ledger collects transitions, the journal and the moments of sends, and says in the end which send fell into which step.
type ledger struct {
	mu          sync.Mutex // guards the fields below
	transitions map[string]*shimv1.Transition
	noted       map[string]map[string]noted // by transition and step: when the journal said so first
	sends       []time.Time
}

// noted is an entry of the journal: written at first, and seen by the reader at once, just before its step begins.
type noted struct{ written, seen time.Time }

func newLedger() *ledger {
	return &ledger{transitions: map[string]*shimv1.Transition{}, noted: map[string]map[string]noted{}}
}

// transition takes the record of a transition that ended; a later one of the same transition has more steps.
func (l *ledger) transition(t *shimv1.Transition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if old := l.transitions[t.GetId()]; old != nil && len(old.GetSteps()) > len(t.GetSteps()) {
		return
	}
	l.transitions[t.GetId()] = t
}

func (l *ledger) entry(e journal.Entry, seen time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.noted[e.ID] == nil {
		l.noted[e.ID] = map[string]noted{}
	}
	if _, again := l.noted[e.ID][e.Step]; !again {
		l.noted[e.ID][e.Step] = noted{e.Time, seen}
	}
}

func (l *ledger) sent(at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sends = append(l.sends, at)
}

func (l *ledger) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.transitions)
}

// span is a step's time: from its entry in the journal to the next step's, or to its end where steps overlap.
type span struct {
	step       string // with the transition's kind: hibernate/pause
	begin, end time.Time
}

// spans are all steps of all transitions. The caller holds l.mu.
func (l *ledger) spans() (all []span) {
	for id, t := range l.transitions {
		start := l.start(id, t)
		steps := slices.SortedFunc(slices.Values(t.GetSteps()), func(a, b *shimv1.Step) int {
			return cmp.Compare(a.GetStartMs(), b.GetStartMs())
		})
		for i, s := range steps {
			begin := start.Add(duration(s.GetStartMs()))
			end := begin.Add(duration(s.GetMs()))
			if n, ok := l.noted[id][s.GetName()]; ok {
				begin = n.written
			}
			if i+1 < len(steps) {
				if n, ok := l.noted[id][steps[i+1].GetName()]; ok && n.written.After(end) {
					end = n.written
				}
			}
			all = append(all, span{t.GetKind() + "/" + s.GetName(), begin, end})
		}
	}
	return all
}

// start is a transition's start as exactly as the journal tells; its record is in whole milliseconds.
func (l *ledger) start(id string, t *shimv1.Transition) time.Time {
	start := time.UnixMilli(t.GetStartedUnixMs()).Add(time.Millisecond)
	for _, s := range t.GetSteps() {
		if n, ok := l.noted[id][s.GetName()]; ok {
			if at := n.seen.Add(-duration(s.GetStartMs())); at.Before(start) {
				start = at
			}
		}
	}
	return start
}

func duration(ms float64) time.Duration { return time.Duration(ms * float64(time.Millisecond)) }

// bySteps counts the sends that fell into each step. Steps of a wake overlap; such a send counts for each of them.
func (l *ledger) bySteps() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{}
	for _, s := range l.spans() {
		for _, at := range l.sends {
			if !at.Before(s.begin) && at.Before(s.end) {
				counts[s.step]++
			}
		}
	}
	return counts
}

// outcomes counts the transitions by kind and outcome.
func (l *ledger) outcomes() map[string]int {
	l.mu.Lock()
	defer l.mu.Unlock()
	counts := map[string]int{}
	for _, t := range l.transitions {
		counts[t.GetKind()+" "+t.GetOutcome()]++
	}
	return counts
}

// failures are the transitions that ended as none should, with their reasons.
func (l *ledger) failures() (all []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range l.transitions {
		switch t.GetOutcome() {
		case "slept", "aborted", "restored":
		default:
			all = append(all, fmt.Sprintf("%s %s: %s: %s", t.GetKind(), t.GetId(), t.GetOutcome(), t.GetDetail()))
		}
		for _, r := range t.GetLadder() {
			if !r.GetOk() || r.GetRepaired() {
				all = append(all, fmt.Sprintf("%s %s: rung %s: ok %v, repaired %v: %s", t.GetKind(), t.GetId(), r.GetName(), r.GetOk(), r.GetRepaired(), r.GetDetail()))
			}
		}
	}
	return all
}

func table(counts map[string]int) string {
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "  %s: %d", k, counts[k])
	}
	return b.String()
}
