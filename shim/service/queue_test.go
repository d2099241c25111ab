package service

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/events"
)

// recorder is a containerd that takes events, or doesn't.
type recorder struct {
	mu     sync.Mutex
	topics []string
	block  chan struct{}
	err    error
}

func (r *recorder) Publish(ctx context.Context, topic string, _ events.Event) error {
	if r.block != nil {
		select {
		case <-r.block:
		case <-ctx.Done():
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.topics = append(r.topics, topic)
	return r.err
}

func TestEventsKeepTheirOrderAndFlushWaits(t *testing.T) {
	r := &recorder{err: errors.New("told, and no more")}
	q := newQueue(r, "n", slog.New(slog.DiscardHandler))
	var want []string
	for i := range 100 {
		want = append(want, fmt.Sprint("/t", i))
		q.put(want[i], nil)
	}
	go q.run()
	begin := time.Now()
	if err := q.flush(); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.topics, want) {
		t.Fatalf("published %v", r.topics)
	}
	if time.Since(begin) >= flushTimeout {
		t.Fatal("flush waited for its time-out")
	}
}

func TestPutNeverBlocks(t *testing.T) {
	r := &recorder{block: make(chan struct{})}
	q := newQueue(r, "n", slog.New(slog.DiscardHandler))
	go q.run()
	for i := range 2 * queued {
		q.put(fmt.Sprint("/t", i), nil)
	}
	close(r.block)
	_ = q.flush()
	<-q.done
	if n := len(r.topics); n < queued || n > queued+2 {
		t.Fatalf("%d events of a full queue were published, want about %d", n, queued)
	}
}
