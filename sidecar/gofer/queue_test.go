package gofer

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// desk is a queue whose readers take a millisecond a read.
type desk struct {
	*queue
	wg sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	served []int64    // offsets, as they are begun
	ahead  []int
	inTurn int // under way
	most   int // of inTurn
}

const (
	readTakes = time.Millisecond
	testChunk = 2
)

func newDesk(readers int, size int64, ahead []int) *desk {
	d := &desk{queue: newQueue(readers, testChunk, size, ahead)}
	for range readers {
		d.wg.Go(func() { d.work(d.read, d.readAhead) })
	}
	return d
}

// isUrgent: tests ask for what is out of turn from here on.
const isUrgent = 1 << 40

func (d *desk) read(s submission) {
	d.note(s, 1)
	time.Sleep(readTakes)
	d.note(s, -1)
}

func (d *desk) note(s submission, n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if n > 0 {
		d.served = append(d.served, s.off)
	}
	if s.off < isUrgent {
		d.inTurn += n
		d.most = max(d.most, d.inTurn)
	}
}

func (d *desk) readAhead(chunk int) {
	d.mu.Lock()
	d.ahead = append(d.ahead, chunk)
	d.mu.Unlock()
	time.Sleep(readTakes)
}

// askTurn asks for n reads in turn, the first at off.
func (d *desk) askTurn(off, n int64) {
	for i := range n {
		d.add(submission{off: off + i}, true)
	}
}

// so far is how many were begun, and the most in turn at a time since it was asked last.
func (d *desk) soFar() (begun, most int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	begun, most = len(d.served), d.most
	d.most = d.inTurn
	return begun, most
}

func (d *desk) end() {
	d.close()
	d.wg.Wait()
}

// A large sandbox that is being restored has the processors; then all readers serve what comes in its turn.
func TestQueueSparesTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(2, sparedSize, nil)
		defer d.end()
		d.askTurn(0, 1000)
		time.Sleep(startWithin - time.Microsecond)
		if n, most := d.soFar(); most != 1 || n > int(startWithin/(startPause+readTakes))+1 {
			t.Errorf("before it runs, %d reads were begun, %d at a time", n, most)
		}
		time.Sleep(10 * (startPause + readTakes))
		d.soFar()
		time.Sleep(10 * readTakes)
		if _, most := d.soFar(); most != 2 {
			t.Errorf("later, %d at a time", most)
		}
	})
}

// A small one is loaded before it runs.
func TestQueueLoadsSmallOnesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(2, sparedSize-1, nil)
		defer d.end()
		d.askTurn(0, 20)
		time.Sleep(10 * readTakes)
		if n, most := d.soFar(); n != 20 || most != 2 {
			t.Errorf("%d reads, %d at a time", n, most)
		}
	})
}

// What somebody waits for overtakes all else, is served by readers that are kept for it, and has the processors for a while.
func TestQueueServesFirstWhatIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(2, mib, nil)
		defer d.end()
		d.askTurn(0, 1000)
		time.Sleep(5*readTakes + readTakes/2) // two are under way
		before, _ := d.soFar()
		d.add(submission{off: isUrgent}, false)
		d.add(submission{off: isUrgent + 1}, false)
		time.Sleep(readTakes)
		d.mu.Lock()
		got := slices.Clone(d.served[before:])
		d.mu.Unlock()
		if !slices.Contains(got, isUrgent) || !slices.Contains(got, isUrgent+1) {
			t.Errorf("begun next: %v", got)
		}
		time.Sleep(2 * readTakes)
		d.soFar()
		for range 3 { // reads out of turn that come one after the other
			time.Sleep(askedLast / 2)
			before, most := d.soFar()
			if most > 1 {
				t.Errorf("%d in turn at a time while others are waited for", most)
			}
			d.add(submission{off: isUrgent + 2}, false)
			time.Sleep(readTakes / 2)
			d.mu.Lock()
			if !slices.Contains(d.served[before:], isUrgent+2) {
				t.Error("it stands behind what comes in its turn")
			}
			d.mu.Unlock()
		}
		time.Sleep(askedLast + 3*readTakes)
		d.soFar()
		time.Sleep(3 * readTakes)
		if _, most := d.soFar(); most != 2 {
			t.Errorf("when nobody waits any more, %d at a time", most)
		}
	})
}

// Chunks are read ahead before what comes in its turn, and no longer once the sandbox is gone.
func TestQueueReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(1, mib, []int{7, 3, 5})
		d.askTurn(0, 2)
		d.add(submission{off: isUrgent}, false)
		time.Sleep(readTakes + readTakes/2)
		n, _ := d.soFar()
		d.mu.Lock()
		if n > 1 || len(d.ahead) == 0 {
			t.Errorf("%d reads, and %v ahead", n, d.ahead)
		}
		d.mu.Unlock()
		d.end()
		if n, _ := d.soFar(); n != 3 || len(d.ahead) == 3 {
			t.Errorf("in the end %d reads, and %v ahead", n, d.ahead)
		}
	})
}

// Readers don't wait for each other's chunks while there are others.
func TestQueueSpreadsChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDesk(2, mib, nil)
		d.askTurn(0, 5)
		d.end()
		for i := 0; i < 4; i += 2 {
			if a, b := d.served[i]/testChunk, d.served[i+1]/testChunk; a == b {
				t.Errorf("%v: two of chunk %d at a time", d.served, a)
			}
		}
	})
}

func TestTurns(t *testing.T) {
	type read struct {
		off, n int64
		inTurn bool
	}
	for what, reads := range map[string][]read{
		"rising":              {{0, 2, true}, {2, 2, true}, {4, 1, true}},
		"one ahead":           {{0, 2, true}, {10, 2, false}, {2, 2, true}},
		"what was had before": {{0, 2, true}, {4, 2, false}, {2, 2, true}, {6, 2, true}},
		"in pieces":           {{0, 2, true}, {6, 2, false}, {4, 2, false}, {2, 2, true}, {8, 2, true}},
		"one after the other": {{0, 2, true}, {4, 2, false}, {6, 2, false}, {2, 2, true}, {8, 2, true}},
		"freed":               {{0, mib, true}, {8 * mib, 32 * mib, false}, {40 * mib, 32 * mib, true}, {72 * mib, mib, true}},
		"all of a mapping":    {{0, 2, true}, {mib, 64 * mib, true}, {2, 2, false}},
	} {
		var order turns
		for i, r := range reads {
			if got := order.add(r.off, r.n); got != r.inTurn {
				t.Errorf("%s: read %d: in turn: %v", what, i, got)
			}
		}
	}
}
