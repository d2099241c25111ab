package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// measureSteady compares the path to a container that is awake: behind the inner link, and with mode off.
func measureSteady(ctx context.Context, b *bench) error {
	c, err := compareSteady(ctx, b)
	if err != nil {
		return err
	}
	n := b.plan.pairs
	b.add("steady_throughput_ratio", c.ratios.throughput.median(), "ratio", ">= 0.90", n)
	b.add("steady_rps_ratio", c.ratios.rate.median(), "ratio", ">= 0.90", n)
	b.add("steady_p99_ratio", c.ratios.p99.median(), "ratio", "<= 1.25", n)
	b.add("steady_connections_ratio", c.ratios.opened.median(), "ratio", ">= 0.90", n)
	c.tell(b, "steady")
	return nil
}

// comparison is what both ways of a container that is awake had, and the pairs' ratios.
type comparison struct{ linked, direct, ratios steadySamples }

// compareSteady has a container behind the inner link and one with mode off take turns.
func compareSteady(ctx context.Context, b *bench) (c comparison, err error) {
	link, err := newOurs(ctx, b, "linked", 0, nil)
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, link.close()) }()
	off, err := newOurs(ctx, b, "off", 0, map[string]string{"mode": "off"})
	if err != nil {
		return c, err
	}
	defer func() { err = errors.Join(err, off.close()) }()
	sides := []*ours{link, off}
	for _, o := range sides { // warm both up
		if _, err := o.load(ctx, quick); err != nil {
			return c, err
		}
	}
	for i := range b.plan.pairs {
		var got [2]steady
		for k := range sides {
			side := (i + k) % 2
			if got[side], err = sides[side].load(ctx, b.plan); err != nil {
				return c, err
			}
		}
		c.linked.add(got[0])
		c.direct.add(got[1])
		c.ratios.add(got[0].over(got[1]))
	}
	return c, nil
}

// tell adds the values that the ratios are of.
func (c comparison) tell(b *bench, prefix string) {
	for _, side := range []struct {
		name string
		of   steadySamples
	}{{"linked", c.linked}, {"off", c.direct}} {
		n := len(side.of.rate)
		b.add(prefix+"_throughput/"+side.name, side.of.throughput.median(), "MiB/s", "", n)
		b.add(prefix+"_rps/"+side.name, side.of.rate.median(), "1/s", "", n)
		b.add(prefix+"_p99_ms/"+side.name, side.of.p99.median(), "ms", "", n)
		b.add(prefix+"_connections/"+side.name, side.of.opened.median(), "1/s", "", n)
	}
}

// steady is what one load measured: MiB/s, requests per second, their 99th percentile in milliseconds, and new
// connections per second.
type steady struct{ throughput, rate, p99, opened float64 }

func (s steady) over(o steady) steady {
	return steady{s.throughput / o.throughput, s.rate / o.rate, s.p99 / o.p99, s.opened / o.opened}
}

type steadySamples struct{ throughput, rate, p99, opened samples }

func (s *steadySamples) add(one steady) {
	s.throughput = append(s.throughput, one.throughput)
	s.rate = append(s.rate, one.rate)
	s.p99 = append(s.p99, one.p99)
	s.opened = append(s.opened, one.opened)
}

func (o *ours) load(ctx context.Context, p plan) (s steady, err error) {
	if s.throughput, err = o.download(ctx, p.download); err != nil {
		return s, fmt.Errorf("download from %s: %w", o.id, err)
	}
	if s.rate, s.p99, err = o.requests(ctx, time.Duration(p.loadMillis)*time.Millisecond); err != nil {
		return s, fmt.Errorf("requests to %s: %w", o.id, err)
	}
	if s.opened, err = o.open(ctx, p.opened); err != nil {
		return s, fmt.Errorf("connections to %s: %w", o.id, err)
	}
	return s, nil
}
