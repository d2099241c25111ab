package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// measurePath compares the path to a container that is awake with that of mode off, as measureSteady does, with the goals of
// the network.
func measurePath(ctx context.Context, b *bench) error {
	c, err := compareSteady(ctx, b)
	if err != nil {
		return err
	}
	n := b.plan.pairs
	b.add("net_throughput_ratio", c.ratios.throughput.median(), "ratio", ">= 0.97", n)
	b.add("net_rps_ratio", c.ratios.rate.median(), "ratio", ">= 0.97", n)
	b.add("net_p99_ratio", c.ratios.p99.median(), "ratio", "<= 1.1", n)
	b.add("net_connrate_ratio", c.ratios.opened.median(), "ratio", ">= 0.95", n)
	c.tell(b, "net")
	return nil
}

// measureHeld compares a connection that was held, once its workload is awake, with one that was made then.
func measureHeld(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "held", 0, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var held, direct, ratios samples
	for i := range b.plan.heldPairs {
		one, err := o.heldAndDirect(ctx, b.plan.download/2, i%2 == 1)
		if err != nil {
			return err
		}
		held, direct, ratios = append(held, one[0]), append(direct, one[1]), append(ratios, one[0]/one[1])
	}
	b.add("held_throughput_ratio", ratios.median(), "ratio", ">= 0.8", len(ratios))
	b.add("held_throughput/held", held.median(), "MiB/s", "", len(held))
	b.add("held_throughput/direct", direct.median(), "MiB/s", "", len(direct))
	return nil
}

// heldAndDirect downloads over a connection that woke the workload, and over one that is made when it is awake, in this order
// or the other. The rates are in MiB/s.
func (o *ours) heldAndDirect(ctx context.Context, mib int, turned bool) (rates [2]float64, err error) {
	if _, _, err := o.sleep(ctx); err != nil {
		return rates, err
	}
	var both [2]*established
	for i := range both { // the first of them wakes
		if both[i], err = establish(ctx, o.world, o.address); err != nil {
			return rates, err
		}
		defer both[i].conn.Close()
		if i > 0 {
			break
		}
		if _, err := o.woken(ctx, "connection"); err != nil {
			return rates, err
		}
		if err := pause(ctx, settle); err != nil {
			return rates, err
		}
	}
	for k := range both {
		i := k
		if turned {
			i = 1 - k
		}
		if rates[i], err = both[i].fetch(mib); err != nil {
			return rates, err
		}
	}
	return rates, nil
}

// fetch downloads so many MiB over the connection, and returns MiB/s.
func (e *established) fetch(mib int) (float64, error) {
	if err := e.conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := fmt.Fprintf(e.conn, "GET /bytes?n=%d HTTP/1.1\r\nHost: bench\r\n\r\n", mib*mebibyte); err != nil {
		return 0, err
	}
	e.in = bufio.NewReaderSize(e.in, 256<<10)
	r, err := http.ReadResponse(e.in, nil)
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	n, err := io.Copy(io.Discard, r.Body)
	if err == nil && n != int64(mib*mebibyte) {
		err = fmt.Errorf("%d bytes came", n)
	}
	return float64(mib) / time.Since(began).Seconds(), err
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
