package gofer

import (
	"slices"
	"sync"
	"time"
)

// How long the readers spare a sandbox's processors.
const (
	// startWithin bounds how long a sandbox that is being restored may take to ask for something out of turn: it runs then.
	startWithin = 150 * time.Millisecond
	// startPause lies between two reads in turn until then, where there are few processors.
	startPause = 2 * time.Millisecond
	// askedLast is how long after a read out of turn another one is expected.
	askedLast = 20 * time.Millisecond
	// sparedSize is that of a file, in bytes, of which little is loaded in any case before the sandbox runs.
	sparedSize = 256 << 20
)

// queue holds the reads of a file until a reader takes them: what somebody waits for out of turn first, then chunks to be read ahead,
// then what comes in its turn. Half of the readers serve the last while the sandbox needs the processors for its answer: until
// it runs, and then until it asks for nothing out of turn for a while. Such a read still ends often, since gVisor looks for who waits
// only then.
type queue struct {
	readers int
	chunk   int64         // bytes
	spare   bool          // the file is large enough to begin slowly
	pause   time.Duration // before each read in turn, until the sandbox runs

	mu     sync.Mutex // guards the fields below
	change sync.Cond  // of any of them
	urgent []submission
	ahead  []int // chunks
	turn   []submission
	busy   []int64   // the chunks in which the reads in turn begin that readers have
	begun  time.Time // when the first read was asked for
	asked  time.Time // when the last out of turn was
	closed bool
}

func newQueue(readers int, chunk, size int64, ahead []int) *queue {
	q := &queue{readers: readers, chunk: chunk, spare: size >= sparedSize, ahead: ahead}
	if readers <= leastParallel {
		q.pause = startPause
	}
	q.change.L = &q.mu
	return q
}

// add takes a read that somebody waits for out of turn, or one in turn.
func (q *queue) add(s submission, inTurn bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.begun.IsZero() {
		q.begun = time.Now()
	}
	if inTurn {
		q.turn = append(q.turn, s)
	} else {
		q.urgent, q.asked = append(q.urgent, s), time.Now()
	}
	q.change.Signal()
}

// close has the readers end once nothing is left to be read. It is called once.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed, q.ahead = true, nil
	q.change.Broadcast()
}

// work has a reader take reads until the queue is closed, and read chunks ahead.
func (q *queue) work(serve func(submission), ahead func(chunk int)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		switch slow, inTurn := q.pace(time.Now()); {
		case len(q.urgent) > 0:
			s := q.urgent[0]
			q.urgent = q.urgent[1:]
			q.apart(func() { serve(s) })
		case len(q.ahead) > 0:
			c := q.ahead[0]
			q.ahead = q.ahead[1:]
			q.apart(func() { ahead(c) })
		case len(q.turn) > 0 && len(q.busy) < inTurn:
			s, done := q.takeTurn()
			q.apart(func() {
				time.Sleep(slow)
				serve(s)
			})
			done()
		case q.closed && len(q.turn) == 0:
			return
		default:
			q.change.Wait()
		}
	}
}

// takeTurn takes the next read in turn, but rather one of a chunk that no other reader is about to read. The caller holds q.mu, also when it
// calls done.
func (q *queue) takeTurn() (s submission, done func()) {
	i := slices.IndexFunc(q.turn, func(s submission) bool { return !slices.Contains(q.busy, s.off/q.chunk) })
	i = max(i, 0)
	s = q.turn[i]
	q.turn = slices.Delete(q.turn, i, i+1)
	q.busy = append(q.busy, s.off/q.chunk)
	return s, func() {
		i := slices.Index(q.busy, s.off/q.chunk)
		q.busy = slices.Delete(q.busy, i, i+1)
		if q.closed || len(q.turn) > 0 { // another may end, or may serve these again
			q.change.Broadcast()
		}
	}
}

// apart does what needs no lock. The caller holds q.mu.
func (q *queue) apart(do func()) {
	q.mu.Unlock()
	defer q.mu.Lock()
	do()
}

// pace says how many readers may serve what comes in its turn, and how long each waits before. The caller holds q.mu.
func (q *queue) pace(now time.Time) (slow time.Duration, inTurn int) {
	half := max(1, q.readers/2)
	switch {
	case !q.asked.IsZero() && now.Sub(q.asked) < askedLast:
		return 0, half
	case q.asked.IsZero() && q.spare && now.Sub(q.begun) < startWithin && !q.closed:
		return q.pause, half
	}
	return 0, q.readers
}
