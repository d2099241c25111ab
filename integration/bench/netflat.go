package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// flatHeap is the heap, in MiB, at which many wakes are to take about the same time.
const flatHeap = 64

// measureFlat has one workload woken again and again by a new connection. What of a wake is *ours* is the time until the
// client has its answer, but for the steps in which runsc makes the sandbox and restores it, and for what the sandbox
// itself takes, heard at its link, to answer the handshake and the request.
func measureFlat(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "flat", flatHeap, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	wire, err := tap(b.world, o.pod)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, wire.close()) }()
	var all, own, answering samples
	steps := &pair{mib: flatHeap, stages: map[string]*samples{}}
	for i := range b.plan.flat {
		if _, _, err := o.sleep(ctx); err != nil {
			return fmt.Errorf("sleep %d: %w", i, err)
		}
		if _, err := wire.thinking(); err != nil { // what was before
			return err
		}
		began := time.Now()
		took, t, err := o.wakeNew(ctx)
		if err != nil {
			return fmt.Errorf("wake %d: %w", i, err)
		}
		all.add(took)
		steps.noteWake("wake-new", t, began, took)
		thought, err := wire.thinking()
		if err != nil {
			return err
		}
		answering.add(thought)
		own = append(own, milliseconds(took-thought)-stepMillis(t, "boot")-stepMillis(t, "restore"))
	}
	at := fmt.Sprint("/", flatHeap)
	b.add("wake_p99_over_p50"+at, all.quantile(0.99)/all.median(), "ratio", "<= 2", len(all))
	b.add("wake_max_ms"+at, all.quantile(1), "ms", "<= 1000", len(all))
	b.add("wake_own_ms_p50", own.median(), "ms", "<= 15", len(own))
	b.add("wake_ms_p50"+at, all.median(), "ms", "", len(all))
	b.add("wake_ms_p99"+at, all.quantile(0.99), "ms", "", len(all))
	b.add("wake_own_ms_p99", own.quantile(0.99), "ms", "", len(own))
	b.add("wake_answer_ms_p50"+at, answering.median(), "ms", "", len(answering))
	b.tellStages(steps)
	return nil
}

// stepMillis is how long a step took; 0 when there was none.
func stepMillis(t *shimv1.Transition, name string) float64 {
	var ms float64
	for _, s := range t.GetSteps() {
		if s.GetName() == name {
			ms += s.GetMs()
		}
	}
	return ms
}
