package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	// slowHeap is the heap, in MiB, of a workload whose wake takes long.
	slowHeap = 512
	// plainHeap is that of one whose wake takes longer than a client waits before it sends its SYN again: all is loaded first.
	plainHeap = 2560
)

// A position is what becomes of new connections to a sleeper: held by the daemon, or parked in the kernel when there is none.
type position struct {
	gate string
	take func(context.Context, *harness.World) error // idempotent
}

var positions = []position{
	{"held", func(ctx context.Context, w *harness.World) error {
		if w.Daemon.Pid() != 0 {
			return nil
		}
		return w.Daemon.Start(ctx)
	}},
	{"parked", func(ctx context.Context, w *harness.World) error {
		if w.Daemon.Pid() == 0 {
			return nil
		}
		return w.Daemon.Stop(ctx)
	}},
}

// measurePositions compares both positions: how long a client waits for its handshake and for its answer, when the wake is quick
// and when it is slow, and how long it takes until each client of a burst is answered. It has no goals: docs/decisions/0005.
func measurePositions(ctx context.Context, b *bench) (err error) {
	defer func() { err = errors.Join(err, positions[0].take(ctx, b.world)) }()
	for _, mib := range []int{flatHeap, slowHeap} {
		if err := measureWaits(ctx, b, mib); err != nil {
			return err
		}
	}
	if err := measureBursts(ctx, b, "", flatLoad, 0, []int{10, 200, 1000}); err != nil {
		return err
	}
	return measureBursts(ctx, b, "/slow", plainLoad, plainHeap, []int{1, 200})
}

func measureWaits(ctx context.Context, b *bench, mib int) (err error) {
	o, err := newOurs(ctx, b, fmt.Sprint("position-", mib), mib, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	for _, p := range positions {
		if err := p.take(ctx, b.world); err != nil {
			return err
		}
		var connect, answer samples
		for range b.plan.positions {
			if err := o.sleepAs(ctx, p.gate); err != nil {
				return err
			}
			began := time.Now()
			c, err := o.world.Dial(ctx, "tcp", o.address.String())
			if err != nil {
				return err
			}
			connect.add(time.Since(began))
			if _, err = c.Write(request); err == nil {
				_, err = c.Read(make([]byte, 1))
			}
			answer.add(time.Since(began))
			if err = errors.Join(err, c.Close()); err != nil {
				return err
			}
			if _, err := b.world.WaitState(ctx, o.id, "awake"); err != nil {
				return err
			}
		}
		at := fmt.Sprintf("/%s/%d", p.gate, mib)
		b.add("connect_ms_p50"+at, connect.median(), "ms", "", len(connect))
		b.add("connect_ms_max"+at, connect.quantile(1), "ms", "", len(connect))
		b.add("answer_ms_p50"+at, answer.median(), "ms", "", len(answer))
		b.add("answer_ms_max"+at, answer.quantile(1), "ms", "", len(answer))
	}
	return nil
}

// sleepAs puts the workload to sleep, and looks that its gate is in a position.
func (o *ours) sleepAs(ctx context.Context, gate string) error {
	if _, _, err := o.sleep(ctx); err != nil {
		return err
	}
	for until := time.Now().Add(answerLimit); ; {
		s, err := o.world.Status(ctx, o.id)
		if err != nil || s.GetGate() == gate {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("the gate is %s, not %s", s.GetGate(), gate)
		}
		if err := pause(ctx, retryEach); err != nil {
			return err
		}
	}
}

func measureBursts(ctx context.Context, b *bench, name, way string, mib int, sizes []int) (err error) {
	o, err := newServerOf(ctx, b, fmt.Sprint("bursts-", mib), way, mib)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	for _, p := range positions {
		if err := p.take(ctx, b.world); err != nil {
			return err
		}
		for _, size := range sizes {
			var took samples
			var all fate
			for range 5 {
				if err := o.sleepAs(ctx, p.gate); err != nil {
					return err
				}
				began := time.Now()
				c, err := newCrowd(o, size)
				if err != nil {
					return err
				}
				if err := c.connected(); err != nil {
					return err
				}
				f, err := c.end()
				if err != nil {
					return err
				}
				took.add(time.Since(began))
				all.add(f)
				if _, err := b.world.WaitState(ctx, o.id, "awake"); err != nil {
					return err
				}
			}
			at := fmt.Sprintf("%s/%s/%d", name, p.gate, size)
			b.add("burst_ms_p50"+at, took.median(), "ms", "", len(took))
			b.add("burst_connect_ms_p50"+at, all.Connect.median(), "ms", "", len(all.Connect))
			b.add("burst_connect_ms_max"+at, all.Connect.quantile(1), "ms", "", len(all.Connect))
			b.add("burst_answer_ms_p50"+at, all.Answer.median(), "ms", "", len(all.Answer))
			b.add("burst_answer_ms_max"+at, all.Answer.quantile(1), "ms", "", len(all.Answer))
			b.add("burst_failed"+at, float64(5*size-all.Answered), "clients", "", 5*size)
		}
	}
	return nil
}
