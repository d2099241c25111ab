package store

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Limits bound what goes to a store and comes from it. Zero is no bound.
type Limits struct {
	Writes, Reads  int   // operations at once: Put and Delete; all others
	Upload, Recall int64 // bytes per second of Put; of Get and GetRange
}

// Limited keeps to limits. An object goes at once: what is bounded is the average, by a pause before the next one. A Get whose
// size isn't known before is counted after. Waiting ends with the context.
func Limited(s Store, l Limits) Store {
	return &limited{Store: s, writes: newSlots(l.Writes), reads: newSlots(l.Reads), up: &pace{rate: l.Upload}, down: &pace{rate: l.Recall}}
}

type limited struct {
	Store
	writes, reads slots
	up, down      *pace
}

// slots are what runs at once; nil: no bound.
type slots chan struct{}

func newSlots(n int) slots {
	if n <= 0 {
		return nil
	}
	return make(slots, n)
}

// take waits for a slot. The function gives it back.
func (s slots) take(ctx context.Context) (func(), error) {
	if s == nil {
		return func() {}, nil
	}
	select {
	case s <- struct{}{}:
		return func() { <-s }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("waiting for others that use the store: %w", ctx.Err())
	}
}

// pace lets bytes pass at an average rate.
type pace struct {
	rate int64
	mu   sync.Mutex
	free time.Time // when all that passed is paid for
}

// pass waits until what passed before is paid for, and then counts n more.
func (p *pace) pass(ctx context.Context, n int64) error {
	if p.rate <= 0 {
		return nil
	}
	p.mu.Lock()
	now := time.Now()
	wait := max(p.free.Sub(now), 0)
	p.free = now.Add(wait + time.Duration(float64(n)/float64(p.rate)*float64(time.Second)))
	p.mu.Unlock()
	if wait == 0 {
		return nil
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		p.mu.Lock()
		p.free = p.free.Add(-time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
		p.mu.Unlock()
		return fmt.Errorf("waiting for the rate that is allowed: %w", ctx.Err())
	}
}

func (l *limited) Put(ctx context.Context, name string, body []byte, cond Condition) (Version, error) {
	if err := l.up.pass(ctx, int64(len(body))); err != nil {
		return "", err
	}
	release, err := l.writes.take(ctx)
	if err != nil {
		return "", err
	}
	defer release()
	return l.Store.Put(ctx, name, body, cond)
}

func (l *limited) Get(ctx context.Context, name string, limit int64) ([]byte, Info, error) {
	release, err := l.reads.take(ctx)
	if err != nil {
		return nil, Info{}, err
	}
	defer release()
	if err := l.down.pass(ctx, 0); err != nil {
		return nil, Info{}, err
	}
	body, info, err := l.Store.Get(ctx, name, limit)
	l.down.count(int64(len(body)))
	return body, info, err
}

// count adds what has passed already.
func (p *pace) count(n int64) {
	if p.rate <= 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / float64(p.rate) * float64(time.Second)))
}

func (l *limited) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	if err := l.down.pass(ctx, length); err != nil {
		return nil, err
	}
	release, err := l.reads.take(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	return l.Store.GetRange(ctx, name, offset, length)
}

func (l *limited) Stat(ctx context.Context, name string) (Info, error) {
	release, err := l.reads.take(ctx)
	if err != nil {
		return Info{}, err
	}
	defer release()
	return l.Store.Stat(ctx, name)
}

func (l *limited) List(ctx context.Context, prefix string) ([]Info, time.Time, error) {
	release, err := l.reads.take(ctx)
	if err != nil {
		return nil, time.Time{}, err
	}
	defer release()
	return l.Store.List(ctx, prefix)
}

func (l *limited) Delete(ctx context.Context, name string) error {
	release, err := l.writes.take(ctx)
	if err != nil {
		return err
	}
	defer release()
	return l.Store.Delete(ctx, name)
}
