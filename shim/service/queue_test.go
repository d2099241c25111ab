package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/api/events"
	"github.com/containerd/containerd/api/types"
)

// recorder is a containerd that takes events, or doesn't.
type recorder struct {
	mu     sync.Mutex // guards the fields below
	topics []string
	times  []time.Time
	err    error // what it answers instead of taking any
	hangs  bool
}

func (r *recorder) forward(ctx context.Context, e *types.Envelope) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.hangs {
		r.mu.Unlock()
		<-ctx.Done()
		r.mu.Lock()
		return ctx.Err()
	}
	if r.err != nil {
		return r.err
	}
	r.topics, r.times = append(r.topics, e.GetTopic()), append(r.times, e.GetTimestamp().AsTime())
	return nil
}

func (r *recorder) answer(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// taken are the topics so far.
func (r *recorder) taken() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.topics)
}

func start(r *recorder) *queue {
	q := newQueue(r.forward, "n", slog.New(slog.DiscardHandler))
	go q.run()
	return q
}

func putSome(q *queue, n int) (want []string) {
	for i := range n {
		want = append(want, fmt.Sprint("/t/", i))
		q.put(want[i], &events.TaskOOM{ContainerID: "c"})
	}
	return want
}

func TestEventsKeepTheirOrderAndFlushWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		q := start(r)
		want := putSome(q, 100)
		begin := time.Now()
		if err := q.flush(); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(r.taken(), want) {
			t.Errorf("sent %v", r.taken())
		}
		if time.Since(begin) >= flushTimeout {
			t.Error("flush waited for its time-out")
		}
	})
}

// containerd is away for a day: what happened meanwhile is told when it is back, in order, once, with the times at which
// it happened.
func TestNothingIsLostWhileNobodyListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{err: errors.New("connection refused")}
		q := start(r)
		begin := time.Now()
		want := putSome(q, 20)
		time.Sleep(24 * time.Hour)
		if got := r.taken(); len(got) != 0 {
			t.Fatalf("sent %v", got)
		}
		r.answer(nil)
		time.Sleep(mostPause)
		synctest.Wait()
		if got := r.taken(); !slices.Equal(got, want) {
			t.Errorf("sent %v", got)
		}
		for _, at := range r.times {
			if !at.Equal(begin) {
				t.Errorf("an event of %v is told as of %v", begin, at)
			}
		}
		_ = q.flush()
	})
}

// One that containerd refuses doesn't hold up the others.
func TestRefusedIsDropped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{err: fmt.Errorf("%w: the topic", errRefused)}
		q := start(r)
		putSome(q, 1)
		synctest.Wait()
		r.answer(nil)
		q.put("/next", &events.TaskOOM{ContainerID: "c"})
		_ = q.flush()
		if got := r.taken(); !slices.Equal(got, []string{"/next"}) {
			t.Errorf("sent %v", got)
		}
	})
}

// A containerd that neither takes nor refuses keeps nobody: not who puts, and not the shim's end.
func TestHangingContainerd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{hangs: true}
		q := start(r)
		begin := time.Now()
		putSome(q, 2*queued)
		if time.Since(begin) != 0 {
			t.Error("put has waited")
		}
		if err := q.flush(); err != nil || time.Since(begin) > 2*flushTimeout {
			t.Errorf("flush: %v after %v", err, time.Since(begin))
		}
	})
}

func TestWhatIsNoMessageIsDropped(t *testing.T) {
	r := &recorder{}
	q := start(r)
	q.put("/t", &struct{}{})
	_ = q.flush()
	if got := r.taken(); len(got) != 0 {
		t.Errorf("sent %v", got)
	}
}
