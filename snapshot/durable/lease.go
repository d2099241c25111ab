package durable

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

const (
	leaseFormat = "hibernate.lease"
	uploadLease = "upload"
	readLease   = "read"
	maxLease    = 64 << 10
)

// leaseBody is what a lease says.
type leaseBody struct {
	Kind     string `json:"kind"`
	Node     string `json:"node"`
	Sequence uint64 `json:"sequence,omitempty"`
	Manifest string `json:"manifest,omitempty"`
}

// lease keeps the collector from what an operation needs, while it is written again in time.
type lease struct {
	l       *Lineage
	op      operation
	body    []byte
	written atomic.Int64 // when the last successful write began: time.Duration since boot
	ever    atomic.Bool
	cancel  context.CancelFunc
	stopped chan struct{}
}

func (l *Lineage) newLease(op operation, b leaseBody) (*lease, error) {
	b.Node = l.t.cfg.Node
	body, err := encodeDocument(leaseFormat, b)
	if err != nil {
		return nil, err
	}
	return &lease{l: l, op: op, body: body}, nil
}

func (le *lease) write(ctx context.Context) error {
	limit := le.l.t.cfg.Grace / 4
	if le.cancel != nil { // again: until it is late, at most
		limit = min(limit, le.left())
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	began := le.l.t.boot()
	le.ever.Store(true)
	if _, err := le.l.t.cfg.Store.Put(ctx, le.l.data(leaseName(le.op)), le.body, store.Always); err != nil {
		return fmt.Errorf("write a lease: %w", err)
	}
	le.written.Store(int64(began))
	return nil
}

// keep writes it every quarter of the grace until end; lost is called once when that is half of the grace late.
func (le *lease) keep(ctx context.Context, lost func()) {
	ctx, le.cancel = context.WithCancel(ctx)
	le.written.Store(int64(le.l.t.boot()))
	le.stopped = make(chan struct{})
	go func() {
		defer close(le.stopped)
		every := le.l.t.cfg.Grace / 4
		for le.l.t.pause(ctx, every) == nil {
			for le.write(ctx) != nil {
				if le.late() {
					lost()
					return
				}
				if le.l.t.pause(ctx, every/8) != nil {
					return
				}
			}
		}
	}()
}

// left is how long it may still last until it is written again: a collector may come to think that nobody is there any more
// a quarter of the grace later.
func (le *lease) left() time.Duration {
	return le.l.t.cfg.Grace/4*3 - (le.l.t.boot() - time.Duration(le.written.Load()))
}

func (le *lease) late() bool { return le.left() <= 0 }

// end takes the lease away, if it was written. What can't be deleted is garbage after the grace.
func (le *lease) end(ctx context.Context) {
	if le.cancel != nil {
		le.cancel()
		<-le.stopped
	}
	if le.ever.Load() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
		defer cancel()
		_ = le.l.t.cfg.Store.Delete(ctx, le.l.data(leaseName(le.op)))
	}
}

const endTimeout = 10 * time.Second

// readLeaseBody gives nil for a lease that is gone meanwhile.
func (l *Lineage) readLease(ctx context.Context, name string) (*leaseBody, error) {
	data, _, err := l.t.cfg.Store.Get(ctx, name, maxLease)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a lease: %w", err)
	}
	var b leaseBody
	if err := decodeDocument(name, leaseFormat, data, &b); err != nil {
		return nil, err
	}
	if b.Kind != uploadLease && b.Kind != readLease {
		return nil, corrupt(name, "it is of kind %q", b.Kind)
	}
	return &b, nil
}
