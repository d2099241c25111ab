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
	e, err := startEcho(b.world.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	var busy, idle answers // idle: what this machine's other work costs
	for range b.plan.answers {
		for _, transition := range []func(context.Context) error{o.hibernateOnce, o.wakeOnce} {
			if err := o.askDuring(ctx, e, transition, &busy); err != nil {
				return err
			}
		}
	}
	pause := func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(2 * time.Second):
			return nil
		}
	}
	if err := o.askDuring(ctx, e, pause, &idle); err != nil {
		return err
	}
	b.add("state_p99_ms", busy.state.quantile(0.99), "ms", "<= 5", len(busy.state))
	b.add("stats_p99_ms", busy.stats.quantile(0.99), "ms", "<= 5", len(busy.stats))
	b.add("echo_p99_ms", busy.echo.quantile(0.99), "ms", "", len(busy.echo))
	for _, f := range []struct {
		name       string
		busy, idle samples
	}{{"state", busy.state, idle.state}, {"stats", busy.stats, idle.stats}, {"echo", busy.echo, idle.echo}} {
		b.addStage(f.name+"_p99_ms/idle", f.idle.quantile(0.99), len(f.idle))
		b.addStage(f.name+"_p50_ms", f.busy.median(), len(f.busy))
		b.addStage(f.name+"_max_ms", f.busy.quantile(1), len(f.busy))
	}
	return nil
}

// answers are how long it took to be answered: by the shim, and by a process that does nothing else.
type answers struct{ state, stats, echo samples }

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

// askDuring asks for all, on connections of their own, until transition ends.
func (o *ours) askDuring(ctx context.Context, e *echo, transition func(context.Context) error, took *answers) error {
	ctx, stop := context.WithTimeout(ctx, time.Minute)
	defer stop()
	asking, enough := context.WithCancel(ctx)
	state := func(c taskapi.TTRPCTaskService) error {
		_, err := c.State(ctx, &taskapi.StateRequest{ID: o.id})
		return err
	}
	stats := func(c taskapi.TTRPCTaskService) error {
		_, err := c.Stats(ctx, &taskapi.StatsRequest{ID: o.id})
		return err
	}
	shim := func() (*ttrpc.Client, error) { return dialShim(ctx, o.world, o.id) }
	idle := func() (*ttrpc.Client, error) { return e.dial(ctx) }
	ended := make(chan error, 3)
	go func() { ended <- askWhile(asking, shim, &took.state, state) }()
	go func() { ended <- askWhile(asking, shim, &took.stats, stats) }()
	go func() { ended <- askWhile(asking, idle, &took.echo, state) }()
	err := transition(ctx)
	enough()
	return errors.Join(err, <-ended, <-ended, <-ended)
}

func askWhile(ctx context.Context, dial func() (*ttrpc.Client, error), took *samples, ask func(taskapi.TTRPCTaskService) error) error {
	conn, err := dial()
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
