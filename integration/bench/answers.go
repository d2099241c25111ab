package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	bigHeap = 1024 // MiB: a checkpoint and a restore that take a while
	// askEach is the pause between two requests of a kind: many containers' are asked by one containerd.
	askEach = 2 * time.Millisecond
)

// measureAnswers asks for State and Stats all the while that a large workload goes to sleep and wakes.
func measureAnswers(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "big", bigHeap, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var state, stats samples
	for range b.plan.answers {
		for _, transition := range []func(context.Context) error{o.hibernateOnce, o.wakeOnce} {
			if err := o.askDuring(ctx, transition, &state, &stats); err != nil {
				return err
			}
		}
	}
	var idleState, idleStats samples // what this machine's other work costs
	pause := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Second):
			return nil
		}
	}
	if err := o.askDuring(ctx, pause, &idleState, &idleStats); err != nil {
		return err
	}
	b.add("state_p99_ms", state.quantile(0.99), "ms", "<= 5", len(state))
	b.add("stats_p99_ms", stats.quantile(0.99), "ms", "<= 5", len(stats))
	b.addStage("state_p99_ms/idle", idleState.quantile(0.99), len(idleState))
	b.addStage("stats_p99_ms/idle", idleStats.quantile(0.99), len(idleStats))
	b.addStage("state_p50_ms", state.median(), len(state))
	b.addStage("stats_p50_ms", stats.median(), len(stats))
	b.addStage("state_max_ms", state.quantile(1), len(state))
	b.addStage("stats_max_ms", stats.quantile(1), len(stats))
	return nil
}

// hibernateOnce is one hibernation. One that last packets undid is asked for again.
func (o *ours) hibernateOnce(ctx context.Context) error {
	for {
		_, err := o.shim.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "bench", Manual: true})
		if status.Code(err) != codes.Aborted {
			return err
		}
	}
}

func (o *ours) wakeOnce(ctx context.Context) error {
	r, err := o.shim.Wake(ctx, &shimv1.WakeRequest{Reason: "bench"})
	if err == nil && r.GetTransition().GetOutcome() != "restored" {
		err = fmt.Errorf("the wake came to %q: %s", r.GetTransition().GetOutcome(), r.GetTransition().GetDetail())
	}
	return err
}

// askDuring asks for both, on connections of their own, until transition ends.
func (o *ours) askDuring(ctx context.Context, transition func(context.Context) error, state, stats *samples) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	asking, enough := context.WithCancel(ctx)
	ended := make(chan error, 2)
	go func() {
		ended <- o.askWhile(asking, state, func(c taskapi.TTRPCTaskService) error {
			_, err := c.State(ctx, &taskapi.StateRequest{ID: o.id})
			return err
		})
	}()
	go func() {
		ended <- o.askWhile(asking, stats, func(c taskapi.TTRPCTaskService) error {
			_, err := c.Stats(ctx, &taskapi.StatsRequest{ID: o.id})
			return err
		})
	}()
	err := transition(ctx)
	enough()
	return errors.Join(err, <-ended, <-ended)
}

func (o *ours) askWhile(ctx context.Context, took *samples, ask func(taskapi.TTRPCTaskService) error) error {
	conn, err := dialShim(ctx, o.world, o.id)
	if err != nil {
		return err
	}
	defer conn.Close()
	client := taskapi.NewTTRPCTaskClient(conn)
	tick := time.NewTicker(askEach)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		began := time.Now()
		if err := ask(client); err != nil {
			return err
		}
		took.add(time.Since(began))
	}
}

// dialShim connects to a container's shim, as containerd does.
func dialShim(ctx context.Context, w *harness.World, id string) (*ttrpc.Client, error) {
	r, err := w.Record(id)
	if err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", w.Path(strings.TrimPrefix(r.Address, "unix://")))
	if err != nil {
		return nil, fmt.Errorf("shim of %s: %w", id, err)
	}
	return ttrpc.NewClient(conn), nil
}

// measureShimMemory measures the shim's process: fresh, after a wake, and long asleep.
func measureShimMemory(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "alone", tailSize, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var awake, asleep samples
	for range b.plan.memory {
		for _, at := range []struct {
			into  *samples
			after time.Duration
			next  func(context.Context) error
		}{{&awake, time.Second, o.hibernateOnce}, {&asleep, longAsleep, o.wakeOnce}} {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-time.After(at.after):
			}
			m, err := b.world.Memory(ctx, o.id)
			if err != nil {
				return err
			}
			*at.into = append(*at.into, float64(m.Shim)/mebibyte)
			if err := at.next(ctx); err != nil {
				return err
			}
		}
	}
	b.add("shim_awake_pss_mib", awake.median(), "MiB", "<= 25", len(awake))
	b.add("shim_asleep_pss_mib", asleep.median(), "MiB", "<= 12", len(asleep))
	return nil
}
