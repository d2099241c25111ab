package main

import (
	"context"
	"errors"
	"time"
)

// measureFlatCold compares both ways when the snapshot has to come from the disk.
func measureFlatCold(ctx context.Context, b *bench) (err error) {
	ways := []string{flatLoad, plainLoad}
	all, err := newLoadedAll(ctx, b, ways, bigHeap)
	defer func() { err = errors.Join(err, closeAll(all)) }()
	if err != nil {
		return err
	}
	var first, loaded [2]samples
	for i := range b.plan.flatRounds {
		for k := range all {
			k = (k + i) % len(all)
			if err := all[k].chill(); err != nil {
				return err
			}
			w, err := all[k].wakeAll(ctx, ways[k])
			if err != nil {
				return err
			}
			first[k].add(w.first)
			loaded[k].add(w.loaded)
		}
	}
	n := len(first[0])
	b.add("flat_cold_over_plain_cold/1024", first[0].median()/first[1].median(), "ratio", "<= 0.6", n)
	b.add("flat_cold_loaded_over_plain_cold/1024", loaded[0].median()/loaded[1].median(), "ratio", "", n)
	b.add("flat_cold_ms_p50/1024", first[0].median(), "ms", "", n)
	b.add("plain_cold_ms_p50/1024", first[1].median(), "ms", "", n)
	return nil
}

// measureFlatFour compares four flat wakes at once, until the last has its answer, with one.
func measureFlatFour(ctx context.Context, b *bench) (err error) {
	all, err := newLoadedAll(ctx, b, []string{flatLoad, flatLoad, flatLoad, flatLoad}, bigHeap)
	defer func() { err = errors.Join(err, closeAll(all)) }()
	if err != nil {
		return err
	}
	var sleepers []sleeper
	for _, o := range all {
		sleepers = append(sleepers, oursAsleep{o})
	}
	var one, four samples
	for i := range b.plan.flatRounds {
		for _, run := range []struct {
			of   []sleeper
			into *samples
		}{{sleepers[i%4 : i%4+1], &one}, {sleepers, &four}} {
			took, err := wakeTogether(ctx, run.of)
			if err != nil {
				return err
			}
			run.into.add(took)
		}
	}
	b.add("flat_four_over_one/1024", four.median()/one.median(), "ratio", "", len(four))
	b.add("flat_four_ms_p50/1024", four.median(), "ms", "", len(four))
	b.add("flat_one_ms_p50/1024", one.median(), "ms", "", len(one))
	return nil
}

// measureFlatRequests counts the requests that are answered, one after the other, while memory still comes, and as many
// once it is there.
func measureFlatRequests(ctx context.Context, b *bench) (err error) {
	all, err := newLoadedAll(ctx, b, []string{flatLoad}, bigHeap)
	defer func() { err = errors.Join(err, closeAll(all)) }()
	if err != nil {
		return err
	}
	var during, after samples
	for range b.plan.flatRounds {
		o := all[0]
		if _, _, err := o.wakeNew(ctx); err != nil {
			return err
		}
		a, z, err := o.askWhileLoading(ctx)
		if err != nil {
			return err
		}
		during, after = append(during, a), append(after, z)
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
	}
	b.add("flat_requests_while_loading/1024", during.median(), "1/s", "", len(during))
	b.add("flat_requests_loaded/1024", after.median(), "1/s", "", len(after))
	return nil
}

// askWhileLoading returns requests a second until all is loaded, and in as long a time thereafter.
func (o *ours) askWhileLoading(ctx context.Context) (during, after float64, err error) {
	loaded, stop := make(chan error, 1), make(chan struct{})
	go func() {
		t, err := o.woken(ctx, "connection")
		if err == nil {
			_, err = o.awaitLoaded(ctx, t, flatLoad)
		}
		loaded <- err
		close(stop)
	}()
	n, took, err := o.askUntil(ctx, stop)
	if err := errors.Join(err, <-loaded); err != nil {
		return 0, 0, err
	}
	timer := make(chan struct{})
	time.AfterFunc(took, func() { close(timer) })
	m, took2, err := o.askUntil(ctx, timer)
	return float64(n) / took.Seconds(), float64(m) / took2.Seconds(), err
}

// askUntil asks on the established connection until stop is closed; once at least.
func (o *ours) askUntil(ctx context.Context, stop <-chan struct{}) (n int, took time.Duration, err error) {
	for began := time.Now(); ; {
		if _, err := o.old.ask(ctx); err != nil {
			return n, 0, err
		}
		n++
		select {
		case <-stop:
			return n, time.Since(began), nil
		default:
		}
	}
}

// newLoadedAll runs a workload for each way, and puts it to sleep. Those that were made are returned with an error, too.
func newLoadedAll(ctx context.Context, b *bench, ways []string, mib int) (all []*ours, err error) {
	for _, way := range ways {
		o, err := newLoaded(ctx, b, way, mib)
		if err != nil {
			return all, err
		}
		all = append(all, o)
		if _, _, err := o.sleep(ctx); err != nil {
			return all, err
		}
	}
	return all, nil
}

func closeAll(all []*ours) error {
	var errs []error
	for _, o := range all {
		errs = append(errs, o.close())
	}
	return errors.Join(errs...)
}
