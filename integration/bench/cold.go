package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// measureColdStart compares `ctr run` of a container with the wake of one that sleeps, both until the first byte.
func measureColdStart(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "warm", tailSize, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var cold, wake samples
	for i := range b.plan.cold {
		took, err := coldStart(ctx, b, fmt.Sprint("cold-", i))
		if err != nil {
			return err
		}
		cold.add(took)
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
		if took, _, err = o.wakeNew(ctx); err != nil {
			return err
		}
		wake.add(took)
	}
	at := fmt.Sprint("/", tailSize)
	b.add("coldstart_over_wake_p50"+at, cold.median()/wake.median(), "ratio", "", len(cold))
	b.add("coldstart_ms_p50"+at, cold.median(), "ms", "", len(cold))
	return nil
}

// coldStart runs a container and removes it again. Its program fills its heap before it answers, as it has to.
func coldStart(ctx context.Context, b *bench, id string) (took time.Duration, err error) {
	o, err := prepare(ctx, b, id)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	began := time.Now()
	ran := make(chan error, 1)
	go func() {
		_, err := b.world.Run(ctx, o.container(tailSize, nil))
		if err != nil {
			cancel(err)
		}
		ran <- err
	}()
	at, err := o.client.again(ctx, o.address)
	return at.Sub(began), errors.Join(err, <-ran)
}
