package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	mebibyte = 1 << 20
	// longAsleep is after the shim has given back what it doesn't need asleep.
	longAsleep = 6500 * time.Millisecond
)

// measureAsleep measures what stays in memory of a sleeper that is alone on its node: with others its shim would share
// more of the program.
func measureAsleep(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "alone", tailSize, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var shim, holder, both samples
	for range b.plan.asleep {
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(longAsleep):
		}
		m, err := b.world.Memory(ctx, o.id)
		if err != nil {
			return err
		}
		if m.Processes != 0 {
			return fmt.Errorf("%d processes of the sandbox run while it sleeps", m.Processes)
		}
		shim, holder = append(shim, float64(m.Shim)/mebibyte), append(holder, float64(m.Holder)/mebibyte)
		both = append(both, float64(m.Shim+m.Holder)/mebibyte)
		if _, _, err := o.wakeNew(ctx); err != nil {
			return err
		}
	}
	b.add("asleep_pss_mib", both.median(), "MiB", "<= 20", len(both))
	b.add("asleep_pss_shim_mib", shim.median(), "MiB", "", len(shim))
	b.add("asleep_pss_holder_mib", holder.median(), "MiB", "", len(holder))
	return nil
}
