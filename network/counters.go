package network

import (
	"context"
	"fmt"
	"time"

	"github.com/google/nftables"
)

// Counters count use, in both directions: datagrams and TCP segments that open,
// close or carry data. Bytes include headers.
type Counters struct{ Packets, Bytes uint64 }

func (c Counters) plus(o Counters) Counters {
	return Counters{c.Packets + o.Packets, c.Bytes + o.Bytes}
}

// Counters reads the activity so far, in every position of the gate: what the
// cut drops counts, too. It never falls while the Link lives, even
// when somebody flushes the table; a flip of the gate doesn't touch it.
func (l *Link) Counters(ctx context.Context) (Counters, error) {
	if err := l.heedObstacles(ctx); err != nil {
		return Counters{}, err
	}
	passed, err := l.fast.counted()
	if err != nil {
		return Counters{}, err
	}
	c, err := l.counter(ctx, counterActivity)
	if err != nil {
		return Counters{}, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.Packets < l.last.Packets || c.Bytes < l.last.Bytes { // a new table
		l.base = l.base.plus(l.last)
	}
	l.last = c
	return l.base.plus(c).plus(passed), nil
}

// Spoofed reads how many packets from hib0 were dropped for what they claimed.
func (l *Link) Spoofed(ctx context.Context) (Counters, error) {
	return l.counter(ctx, counterSpoofed)
}

func (l *Link) counter(ctx context.Context, name string) (out Counters, err error) {
	t := &nftables.Table{Name: tableName, Family: nftables.TableFamilyINet}
	err = l.pod.withNFT(ctx, func(c *nftables.Conn) error {
		o, err := c.GetObject(&nftables.CounterObj{Table: t, Name: name})
		if err != nil {
			return fmt.Errorf("read counter %s: %w", name, err)
		}
		counter, ok := o.(*nftables.CounterObj)
		if !ok {
			return fmt.Errorf("read counter %s: %w", name, ErrNoGate)
		}
		out = Counters{counter.Packets, counter.Bytes}
		return nil
	})
	return out, err
}

// Unsaid reads the activity that the cut dropped: what the sandbox wanted to say
// and will say again when its retransmission is due.
func (l *Link) Unsaid(ctx context.Context) (Counters, error) {
	return l.counter(ctx, counterUnsaid)
}

// Quiet returns when nothing came from hib0 for window, whatever the gate's
// position; the context bounds the wait.
func (l *Link) Quiet(ctx context.Context, window time.Duration) error {
	tick := time.NewTicker(max(window/10, time.Millisecond))
	defer tick.Stop()
	before, err := l.received()
	for since := time.Now(); err == nil && time.Since(since) < window; {
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for quiet: %w", context.Cause(ctx))
		case <-tick.C:
		}
		var now uint64
		if now, err = l.received(); now != before {
			before, since = now, time.Now()
		}
	}
	if err != nil {
		return fmt.Errorf("wait for quiet: %w", err)
	}
	return nil
}

// received is how many frames have come from hib0.
func (l *Link) received() (uint64, error) {
	outer, err := l.outer()
	if err != nil {
		return 0, err
	}
	if s := outer.Attrs().Statistics; s != nil {
		return s.RxPackets, nil
	}
	return 0, fmt.Errorf("%s has no statistics", outerName)
}
