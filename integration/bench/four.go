package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// measureFour compares four wakes at once, until the last has its answer, with one.
func measureFour(ctx context.Context, b *bench) (err error) {
	var all []*ours
	defer func() {
		for _, o := range all {
			err = errors.Join(err, o.close())
		}
	}()
	for i := range 4 {
		o, err := newOurs(ctx, b, fmt.Sprint("four-", i), tailSize, nil)
		if err != nil {
			return err
		}
		all = append(all, o)
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
	}
	var one, four samples
	for i := range b.plan.four {
		for _, run := range []struct {
			of   []*ours
			into *samples
		}{{all[i%4 : i%4+1], &one}, {all, &four}} {
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
	return nil
}

// wakeTogether wakes sleepers at once, returns how long the last answer took, and puts them to sleep again one by one.
func wakeTogether(ctx context.Context, sleepers []*ours) (time.Duration, error) {
	g, together := errgroup.WithContext(ctx)
	took := make([]time.Duration, len(sleepers))
	for i, o := range sleepers {
		g.Go(func() (err error) { took[i], _, err = o.wakeNew(together); return err })
	}
	if err := g.Wait(); err != nil {
		return 0, err
	}
	for _, o := range sleepers {
		if _, _, err := o.sleep(ctx); err != nil {
			return 0, err
		}
	}
	return slices.Max(took), nil
}
