package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// measureStandby wakes two workloads in turn: one boots its sandbox in the wake, the other has one that stands by.
func measureStandby(ctx context.Context, b *bench) (err error) {
	ways := [2]string{flatLoad, standbyLoad}
	var all [2]*ours
	defer func() {
		for _, o := range all {
			if o != nil {
				err = errors.Join(err, o.close())
			}
		}
	}()
	for i, way := range ways {
		if all[i], err = newLoaded(ctx, b, way, tailSize); err != nil {
			return err
		}
		if _, _, err = all[i].sleep(ctx); err != nil {
			return err
		}
	}
	var first [2]samples
	var memory samples
	steps := &pair{mib: tailSize, stages: map[string]*samples{}}
	for round := range b.plan.flatRounds {
		for k := range all {
			i := (round + k) % len(all)
			if ways[i] == standbyLoad {
				took, err := all[i].awaitStandby(ctx)
				if err != nil {
					return err
				}
				memory = append(memory, took)
			}
			w, err := all[i].wakeAll(ctx, ways[i])
			if err != nil {
				return err
			}
			first[i].add(w.first)
			steps.note(ways[i], w.told)
		}
	}
	b.add("standby_over_flat_p50", first[1].median()/first[0].median(), "ratio", "<= 0.65", len(first[1]))
	b.add("standby_ms_p50/128", first[1].median(), "ms", "", len(first[1]))
	b.add("standby_flat_ms_p50/128", first[0].median(), "ms", "", len(first[0]))
	b.add("standby_mib", memory.median(), "MiB", "", len(memory))
	b.tellStages(steps)
	return nil
}

// awaitStandby waits until a sandbox stands by, and returns what the container takes with it, in MiB.
func (o *ours) awaitStandby(ctx context.Context) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for ctx.Err() == nil {
		s, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
		if err != nil {
			return 0, err
		}
		if s.GetState() == "asleep" && s.GetSandboxPid() != 0 {
			return float64(s.GetMemoryBytes()) / (1 << 20), nil
		}
		time.Sleep(retryEach)
	}
	return 0, fmt.Errorf("%s: no sandbox stands by: %w", o.id, context.Cause(ctx))
}
