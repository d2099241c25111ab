package service

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/core/events"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

const (
	queued         = 1024
	publishTimeout = 5 * time.Second
	flushTimeout   = 2 * time.Second
)

// queue publishes events in the order in which they were put, without ever making a caller wait: containerd may be down.
type queue struct {
	publisher events.Publisher
	namespace string
	log       *slog.Logger
	waiting   chan message
	last      chan struct{} // closed when what waits is all that is to be published
	once      sync.Once
	done      chan struct{}
}

type message struct {
	topic string
	event any
}

func newQueue(p events.Publisher, namespace string, log *slog.Logger) *queue {
	return &queue{publisher: p, namespace: namespace, log: log, waiting: make(chan message, queued),
		last: make(chan struct{}), done: make(chan struct{})}
}

// put queues an event. One that finds a full queue is dropped, and told: containerd learns of exits by Wait.
func (q *queue) put(topic string, event any) {
	select {
	case q.waiting <- message{topic, event}:
	default:
		q.log.Error("event dropped: containerd takes none", "topic", topic)
	}
}

// run publishes until flush is called.
func (q *queue) run() {
	defer close(q.done)
	for {
		select {
		case m := <-q.waiting:
			q.publish(m)
		case <-q.last:
			for {
				select {
				case m := <-q.waiting:
					q.publish(m)
				default:
					return
				}
			}
		}
	}
}

func (q *queue) publish(m message) {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(context.Background(), q.namespace), publishTimeout)
	defer cancel()
	if err := q.publisher.Publish(ctx, m.topic, m.event); err != nil {
		q.log.Warn("publish", "topic", m.topic, "error", err)
	}
}

// flush ends the queue, and waits for a moment until what was put is published.
func (q *queue) flush() error {
	q.once.Do(func() { close(q.last) })
	select {
	case <-q.done:
	case <-time.After(flushTimeout):
	}
	return nil
}
