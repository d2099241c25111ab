package main

import (
	"context"
	"errors"
)

// measureFlatMany wakes many sandboxes of the smallest and of the largest heap, a few times each: where a sandbox's memory
// lies differs from one to the next, and with it what a wake waits for. They are there one pair at a time, since their
// snapshots must stay in memory.
func measureFlatMany(ctx context.Context, b *bench) error {
	return b.flatMany(ctx, "flat_3072_over_16_p50", "flat_many")
}

// measureFlatUnsignalled is the same with servers whose runtime sends itself no signals: each of these waits for all of a large mapping (decision 0006).
func measureFlatUnsignalled(ctx context.Context, b *bench) error {
	b.env = []string{"GODEBUG=asyncpreemptoff=1"}
	defer func() { b.env = nil }()
	return b.flatMany(ctx, "flat_unsignalled_3072_over_16_p50", "flat_unsignalled")
}

func (b *bench) flatMany(ctx context.Context, ratio, name string) error {
	small, large := b.plan.flatSizes[0], b.plan.flatSizes[len(b.plan.flatSizes)-1]
	var first [2]samples
	var sandboxes samples // the median of each large one
	for range b.plan.flatBoxes {
		of, err := flatPair(ctx, b, [2]int{small, large})
		if err != nil {
			return err
		}
		for i := range of {
			first[i] = append(first[i], of[i]...)
		}
		sandboxes = append(sandboxes, of[1].median())
	}
	n := len(first[1])
	b.add(ratio, first[1].median()/first[0].median(), "ratio", "<= 1.3", n)
	b.add(name+"_ms_p50/16", first[0].median(), "ms", "", n)
	b.add(name+"_ms_p50/3072", first[1].median(), "ms", "", n)
	b.add(name+"_ms_p99/3072", first[1].quantile(0.99), "ms", "", n)
	b.add(name+"_slowest_sandbox_ms_p50/3072", sandboxes.quantile(1), "ms", "", len(sandboxes))
	return nil
}

// flatPair wakes two new workloads in turn.
func flatPair(ctx context.Context, b *bench, mib [2]int) (first [2]samples, err error) {
	var all [2]*ours
	defer func() {
		for _, o := range all {
			if o != nil {
				err = errors.Join(err, o.close())
			}
		}
	}()
	for i := range all {
		if all[i], err = newLoaded(ctx, b, flatLoad, mib[i]); err != nil {
			return first, err
		}
		if _, _, err = all[i].sleep(ctx); err != nil {
			return first, err
		}
	}
	for range b.plan.flatWakes {
		for i, o := range all {
			w, err := o.wakeAll(ctx, flatLoad)
			if err != nil {
				return first, err
			}
			first[i].add(w.first)
		}
	}
	return first, nil
}
