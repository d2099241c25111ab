package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// measureSteady compares the path to a container that is awake: behind the inner link, and with mode off. The two take
// turns, and the figures are medians of the pairs' ratios.
func measureSteady(ctx context.Context, b *bench) (err error) {
	link, err := newOurs(ctx, b, "linked", 0, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, link.close()) }()
	off, err := newOurs(ctx, b, "off", 0, map[string]string{"mode": "off"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, off.close()) }()
	for _, o := range []*ours{link, off} { // warm both up
		if _, err := o.load(ctx, quick); err != nil {
			return err
		}
	}
	var linked, direct, ratios steadySamples
	for i := range b.plan.pairs {
		sides := []*ours{link, off}
		var got [2]steady
		for k := range sides {
			side := (i + k) % 2
			if got[side], err = sides[side].load(ctx, b.plan); err != nil {
				return err
			}
		}
		linked.add(got[0])
		direct.add(got[1])
		ratios.add(got[0].over(got[1]))
	}
	n := b.plan.pairs
	b.add("steady_throughput_ratio", ratios.throughput.median(), "ratio", ">= 0.90", n)
	b.add("steady_rps_ratio", ratios.rate.median(), "ratio", ">= 0.90", n)
	b.add("steady_p99_ratio", ratios.p99.median(), "ratio", "<= 1.25", n)
	b.add("steady_connections_ratio", ratios.opened.median(), "ratio", ">= 0.90", n)
	for name, s := range map[string]steadySamples{"linked": linked, "off": direct} {
		b.add("steady_throughput/"+name, s.throughput.median(), "MiB/s", "", n)
		b.add("steady_rps/"+name, s.rate.median(), "1/s", "", n)
		b.add("steady_p99_ms/"+name, s.p99.median(), "ms", "", n)
		b.add("steady_connections/"+name, s.opened.median(), "1/s", "", n)
	}
	return nil
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
