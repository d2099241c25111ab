package moment

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/shim/journal"
)

// plan is what to do in one round.
type plan struct {
	t      *testing.T
	target string // the step of the hibernation at which somebody talks; "" lets it sleep
	fresh  bool   // and does so on a new connection
}

// player reads the journal and has somebody talk at its entries.
type player struct {
	run     *run
	journal *reader
	done    sync.WaitGroup
	once    sync.Once

	mu      sync.Mutex // guards the fields below; held while it plays
	plan    plan
	playing bool
	talked  bool
}

func newPlayer(r *run, j *reader) *player {
	p := &player{run: r, journal: j}
	p.done.Go(func() {
		for e := range j.entries {
			r.ledger.entry(e.Entry, e.seen)
			p.react(e.Entry)
		}
	})
	return p
}

func (p *player) close() {
	p.once.Do(func() {
		p.journal.close()
		p.done.Wait()
	})
}

// play sets what to do from now on; rest says to do nothing more. It returns when nothing is being done.
func (p *player) play(next plan) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.plan, p.playing, p.talked = next, true, false
}

func (p *player) rest() {
	// The wake may have begun just now, and has to end.
	ctx, cancel := context.WithTimeout(context.Background(), settleTime)
	defer cancel()
	_ = until(ctx, func() (bool, error) {
		p.run.mu.Lock()
		defer p.run.mu.Unlock()
		return p.run.state == "awake" && len(p.journal.entries) == 0, nil
	})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.playing = false
}

// spoke says whether somebody has talked in this round.
func (p *player) spoke() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.talked
}

// within is about how long a step takes: sends are spread over it.
var within = map[string]time.Duration{
	"quiesce": 18 * time.Millisecond, "pause": 5 * time.Millisecond, "checkpoint": 40 * time.Millisecond,
	"verify": time.Millisecond, "free": 15 * time.Millisecond, "boot": 40 * time.Millisecond, "restore": 40 * time.Millisecond,
}

func (p *player) react(e journal.Entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.playing {
		return
	}
	if e.Operation == "hibernate" {
		p.descending(e.Step)
	} else {
		p.ascending(e.Step)
	}
}

// descending: one packet ends a hibernation, so only the step aimed at gets one. An undo is talked into at once.
func (p *player) descending(step string) {
	switch {
	case step == "begin" && p.plan.target == "guard": // which is over in a moment, and begins after some of these
		p.burst(8, time.Millisecond)
		p.talked = false
	case step == "undo":
		p.burst(4, 500*time.Microsecond)
	case step == p.plan.target && !p.talked:
		if most := within[step]; most > 0 {
			time.Sleep(rand.N(most))
		}
		p.talk()
	}
}

// ascending: the first steps are over within a millisecond.
func (p *player) ascending(step string) {
	switch step {
	case "begin":
		p.burst(30, 1500*time.Microsecond)
	case "boot", "restore":
		time.Sleep(rand.N(within[step]))
		p.talk()
	case journal.Done:
		p.burst(2, time.Millisecond)
		if rand.IntN(2) == 0 {
			p.alongTheLadder()
		}
	default:
		p.burst(3, time.Millisecond)
	}
}

// alongTheLadder: it is climbed a while after the wake, for some milliseconds.
func (p *player) alongTheLadder() {
	time.Sleep(45 * time.Millisecond)
	for range 12 {
		p.burst(2, time.Millisecond)
		time.Sleep(rand.N(2 * time.Millisecond))
	}
}

// talk sends one line, on a connection old or new.
func (p *player) talk() {
	p.talked = true
	if p.plan.fresh && rand.IntN(2) == 0 {
		p.run.connectLater(p.plan.t)
		return
	}
	p.run.send()
}

// burst sends lines without a pause.
func (p *player) burst(lines int, most time.Duration) {
	for end := time.Now().Add(most); lines > 0 && time.Now().Before(end); lines-- {
		p.run.send()
	}
	if p.plan.fresh && rand.IntN(4) == 0 {
		p.run.connectLater(p.plan.t)
	}
	p.talked = true
}
