package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureFour compares four wakes at once, until the last has its answer, with one; and for what the machine can do at
// all, the same with raw sandboxes.
func measureFour(ctx context.Context, b *bench) (err error) {
	var ours, raws []sleeper
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, p.close())
		}
	}()
	for i := range 4 {
		p, err := newPair(ctx, b, fmt.Sprint("four-", i), tailSize)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
		if err := p.fallAsleep(ctx); err != nil {
			return err
		}
		ours = append(ours, oursAsleep{p.ours})
		raws = append(raws, p.raw)
	}
	var one, four, rawOne, rawFour samples
	for i := range b.plan.four {
		runs := []struct {
			of   []sleeper
			into *samples
		}{{ours[i%4 : i%4+1], &one}, {raws[i%4 : i%4+1], &rawOne}, {ours, &four}, {raws, &rawFour}}
		if i%2 == 1 { // who comes second finds memory that was in use a moment ago
			slices.Reverse(runs)
		}
		for _, run := range runs {
			took, err := wakeTogether(ctx, run.of)
			if err != nil {
				return err
			}
			run.into.add(took)
		}
	}
	b.add("wake_four_over_one", four.median()/one.median(), "ratio", "<= 2.5", len(four))
	b.add("wake_four_ms_p50", four.median(), "ms", "", len(four))
	b.add("wake_one_ms_p50", one.median(), "ms", "", len(one))
	b.add("raw_four_over_one", rawFour.median()/rawOne.median(), "ratio", "", len(rawFour))
	b.add("raw_four_ms_p50", rawFour.median(), "ms", "", len(rawFour))
	return nil
}

// A sleeper is woken, and sleeps again when it is told to.
type sleeper interface {
	wake(context.Context) (time.Duration, error)
	sleep(context.Context) (time.Duration, error)
}

type oursAsleep struct{ *ours }

func (o oursAsleep) wake(ctx context.Context) (time.Duration, error) {
	took, _, err := o.wakeNew(ctx)
	return took, err
}

func (o oursAsleep) sleep(ctx context.Context) (time.Duration, error) {
	took, _, err := o.ours.sleep(ctx)
	return took, err
}

// wakeTogether wakes sleepers at once, returns how long the last answer took, and puts them to sleep again one by one.
func wakeTogether(ctx context.Context, all []sleeper) (time.Duration, error) {
	g, together := errgroup.WithContext(ctx)
	took := make([]time.Duration, len(all))
	for i, s := range all {
		g.Go(func() (err error) { took[i], err = s.wake(together); return err })
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, s := range all {
		if _, err := s.sleep(ctx); err != nil {
			return 0, err
		}
	}
	return slices.Max(took), nil
}
