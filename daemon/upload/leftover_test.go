package upload

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"
)

// simulated is a node with two processors, in simulated time: others want some, a worker takes what it is given.
type simulated struct {
	clock  time.Duration
	others float64 // processors that others use while the worker rests, and want while it works
	used   time.Duration
	mine   time.Duration
	hurry  atomic.Bool
}

func (s *simulated) now() time.Time { return time.Unix(1000, 0).Add(s.clock) }

// pass lets time go by, in which the worker uses mine processors; the others make room where there is not enough for all.
func (s *simulated) pass(d time.Duration, mine float64) {
	others := min(s.others, 2-mine/2)
	s.clock += d
	s.mine += time.Duration(mine * float64(d))
	s.used += time.Duration((others + mine) * float64(d))
}

func (s *simulated) leftover() *leftover {
	l := newLeftover()
	l.cores, l.now = 2, s.now
	l.own = func() time.Duration { return s.mine }
	l.busy = func() (time.Duration, error) { return s.used / tick * tick, nil }
	l.pause = func(_ context.Context, d time.Duration) { s.pass(d, 0) }
	return l
}

const piece = 10 * time.Millisecond

// work has a worker work for a while, and returns the part of a processor that it got.
func (s *simulated) work(l *leftover, lasting time.Duration) float64 {
	began, before := s.clock, s.mine
	for s.clock < began+lasting {
		s.pass(piece, 1)
		l.pace(urgent(context.Background(), &s.hurry), piece, 0)
	}
	return float64(s.mine-before) / float64(s.clock-began)
}

// TestUploadsTakeWhatIsLeft: all of a processor where nobody else is, next to nothing where the others want all, and again all soon
// after they have ended.
func TestUploadsTakeWhatIsLeft(t *testing.T) {
	s := &simulated{}
	l := s.leftover()
	s.work(l, time.Second)
	if got := s.work(l, 5*time.Second); got < 0.95 {
		t.Errorf("alone a worker gets %.2f of a processor", got)
	}
	s.others = 2
	s.work(l, 2*time.Second)
	if got := s.work(l, 20*time.Second); got > 0.03 || got < 0.015 {
		t.Errorf("beside others that want all it gets %.3f of a processor", got)
	}
	s.others = 0.5
	s.work(l, 10*time.Second)
	if got := s.work(l, 5*time.Second); got < 0.95 {
		t.Errorf("beside others that want little it gets %.2f of a processor", got)
	}
}

// TestUploadsGoOnBesideTheProxy: what the rest of this process uses is the others', and neither stops uploads nor lets them take more.
func TestUploadsGoOnBesideTheProxy(t *testing.T) {
	s := &simulated{others: 1}
	l := s.leftover()
	proxy := func() time.Duration { return s.clock / 2 } // of this process, too
	l.own = func() time.Duration { return s.mine + proxy() }
	l.busy = func() (time.Duration, error) { return (s.used + proxy()) / tick * tick, nil }
	s.work(l, 2*time.Second)
	if got := s.work(l, 20*time.Second); got > 0.03 || got < 0.015 {
		t.Errorf("beside a busy proxy it gets %.3f of a processor", got)
	}
}

// TestSendingCounts: as that of the workers does.
func TestSendingCounts(t *testing.T) {
	s := &simulated{others: 2}
	l := s.leftover()
	s.work(l, 2*time.Second)
	began := s.clock
	const mib = 32
	l.pace(context.Background(), 0, mib<<20)
	if took := s.clock - began; took < mib*sendCost*40 {
		t.Errorf("%d MiB were sent within %v", mib, took)
	}
}

// TestWaitsDoNotCount: a piece of work that waited for the disk owes no more than any.
func TestWaitsDoNotCount(t *testing.T) {
	s := &simulated{others: 2}
	l := s.leftover()
	s.work(l, 2*time.Second)
	began := s.clock
	l.pace(context.Background(), time.Hour, 0)
	if took := s.clock - began; took > 2*time.Second {
		t.Errorf("it waited for %v", took)
	}
}

// TestUploadsGoOnUnseen: where nothing can be known of the others; and no wait outlives its context.
func TestUploadsGoOnUnseen(t *testing.T) {
	s := &simulated{others: 2}
	l := s.leftover()
	l.busy = func() (time.Duration, error) { return 0, errors.New("no /proc") }
	if got := s.work(l, 5*time.Second); got < 0.2 {
		t.Errorf("a worker gets %.2f of a processor", got)
	}
	l = s.leftover()
	s.work(l, 5*time.Second)
	ctx, cancel := context.WithCancel(context.Background())
	l.pause = func(context.Context, time.Duration) { cancel() }
	l.pace(ctx, time.Second, 1<<30)
}

func TestParseBusy(t *testing.T) {
	busy, err := parseBusy("cpu  100 20 30 4000 500 6 7 8 90 10")
	if err != nil || busy != 171*tick {
		t.Errorf("busy for %v, %v; want %v", busy, err, 171*tick)
	}
	for _, line := range []string{"", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 4 5 6 7 x"} {
		if _, err := parseBusy(line); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
	if real, err := busyTime(); err != nil || real <= 0 {
		t.Errorf("this node was busy for %v, %v", real, err)
	}
}

// TestUrgentUploadsTakeWhatTheyCan: what somebody waits for gives others no room, from the moment that it is so.
func TestUrgentUploadsTakeWhatTheyCan(t *testing.T) {
	s := &simulated{others: 2}
	l := s.leftover()
	s.work(l, 5*time.Second)
	s.hurry.Store(true)
	if got := s.work(l, 5*time.Second); got < 0.95 {
		t.Errorf("in a hurry a worker gets %.2f of a processor", got)
	}
	s.hurry.Store(false)
	s.work(l, 10*time.Second)
	if got := s.work(l, 10*time.Second); got > 0.03 {
		t.Errorf("afterwards it gets %.2f", got)
	}
}
