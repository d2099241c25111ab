package service

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	queued         = 1024
	forwardTimeout = 5 * time.Second
	flushTimeout   = 2 * time.Second
	// Between two attempts, growing.
	leastPause = 50 * time.Millisecond
	mostPause  = time.Second
)

// queue sends events in the order in which they were put, without ever making a caller wait. containerd may be down: what
// can't be sent stays first in the queue until it can.
type queue struct {
	forward   func(context.Context, *types.Envelope) error
	namespace string
	log       *slog.Logger
	waiting   chan *types.Envelope
	ctx       context.Context // ends when nothing more is to be tried
	giveUp    context.CancelFunc
	last      chan struct{} // closed when what waits is all that is to be sent
	once      sync.Once
	done      chan struct{}
}

func newQueue(forward func(context.Context, *types.Envelope) error, namespace string, log *slog.Logger) *queue {
	q := &queue{forward: forward, namespace: namespace, log: log, waiting: make(chan *types.Envelope, queued),
		last: make(chan struct{}), done: make(chan struct{})}
	q.ctx, q.giveUp = context.WithCancel(context.Background())
	return q
}

// put queues an event of now. One that finds a full queue is dropped, and told: containerd learns of exits by Wait, too.
func (q *queue) put(topic string, event any) {
	body, err := typeurl.MarshalAnyToProto(event)
	if err != nil {
		q.log.Error("event dropped", "topic", topic, "error", err)
		return
	}
	select {
	case q.waiting <- &types.Envelope{Timestamp: timestamppb.Now(), Namespace: q.namespace, Topic: topic, Event: body}:
	default:
		q.log.Error("event dropped: containerd takes none", "topic", topic)
	}
}

// run sends until flush is called.
func (q *queue) run() {
	defer close(q.done)
	for {
		select {
		case e := <-q.waiting:
			q.send(e)
		case <-q.last:
			for {
				select {
				case e := <-q.waiting:
					q.send(e)
				default:
					return
				}
			}
		}
	}
}

// send tries until containerd has taken the event, has refused it, or the queue is given up.
func (q *queue) send(e *types.Envelope) {
	for pause := leastPause; ; pause = min(2*pause, mostPause) {
		ctx, cancel := context.WithTimeout(q.ctx, forwardTimeout)
		err := q.forward(ctx, e)
		cancel()
		switch {
		case err == nil:
			return
		case errors.Is(err, errRefused), q.ctx.Err() != nil:
			q.log.Error("event dropped", "topic", e.GetTopic(), "error", err)
			return
		}
		if pause == leastPause {
			q.log.Warn("containerd doesn't take events; they wait", "topic", e.GetTopic(), "error", err)
		}
		select {
		case <-time.After(pause):
		case <-q.ctx.Done():
		}
	}
}

// flush ends the queue, and waits for a moment until what was put is sent. What is not by then is dropped.
func (q *queue) flush() error {
	q.once.Do(func() { close(q.last) })
	select {
	case <-q.done:
	case <-time.After(flushTimeout):
	}
	q.giveUp()
	<-q.done
	return nil
}
