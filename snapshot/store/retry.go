package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"
)

// Patience is how often and how long something is tried. The context ends it in any case.
type Patience struct {
	Tries int           // at most; 0 is 4
	First time.Duration // about the pause after the first; 0 is 200 ms. Each pause is about twice the one before.
	Most  time.Duration // the longest pause; 0 is 10 s
}

// Retried tries again what may be repeated: all that reads, Delete, and Put without a condition. A Put with a condition is
// done once: when its answer is lost the store holds the caller's own bytes, and would say of a repetition that the
// condition didn't hold. Whoever puts so reads, and compares.
//
// Only ErrUnavailable is tried again.
func Retried(s Store, p Patience) Store {
	if p.Tries <= 0 {
		p.Tries = 4
	}
	if p.First <= 0 {
		p.First = 200 * time.Millisecond
	}
	if p.Most <= 0 {
		p.Most = 10 * time.Second
	}
	return &retried{s, p}
}

type retried struct {
	Store
	patience Patience
}

// again calls do until it has an answer.
func (r *retried) again(ctx context.Context, do func() error) error {
	pause := r.patience.First
	for try := 1; ; try++ {
		err := do()
		if err == nil || !errors.Is(err, ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		if try >= r.patience.Tries {
			return fmt.Errorf("%w (tried %d times)", err, try)
		}
		// Between half of the pause and one and a half, so that many that failed together don't come again together.
		timer := time.NewTimer(pause/2 + rand.N(pause))
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w; and %w", err, ctx.Err())
		}
		pause = min(2*pause, r.patience.Most)
	}
}

func (r *retried) Put(ctx context.Context, name string, body []byte, cond Condition) (version Version, err error) {
	if cond != Always {
		return r.Store.Put(ctx, name, body, cond)
	}
	err = r.again(ctx, func() error {
		version, err = r.Store.Put(ctx, name, body, cond)
		return err
	})
	return version, err
}

func (r *retried) Get(ctx context.Context, name string, limit int64) (body []byte, info Info, err error) {
	err = r.again(ctx, func() error {
		body, info, err = r.Store.Get(ctx, name, limit)
		return err
	})
	return body, info, err
}

func (r *retried) GetRange(ctx context.Context, name string, offset, length int64) (body []byte, err error) {
	err = r.again(ctx, func() error {
		body, err = r.Store.GetRange(ctx, name, offset, length)
		return err
	})
	return body, err
}

func (r *retried) Stat(ctx context.Context, name string) (info Info, err error) {
	err = r.again(ctx, func() error {
		info, err = r.Store.Stat(ctx, name)
		return err
	})
	return info, err
}

func (r *retried) List(ctx context.Context, prefix string) (found []Info, began time.Time, err error) {
	err = r.again(ctx, func() error {
		found, began, err = r.Store.List(ctx, prefix)
		return err
	})
	return found, began, err
}

func (r *retried) Delete(ctx context.Context, name string) error {
	return r.again(ctx, func() error { return r.Store.Delete(ctx, name) })
}
