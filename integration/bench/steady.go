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
		ratios.add(steady{got[0].throughput / got[1].throughput, got[0].rate / got[1].rate, got[0].p99 / got[1].p99})
	}
	n := b.plan.pairs
	b.add("steady_throughput_ratio", ratios.throughput.median(), "ratio", ">= 0.90", n)
	b.add("steady_rps_ratio", ratios.rate.median(), "ratio", ">= 0.90", n)
	b.add("steady_p99_ratio", ratios.p99.median(), "ratio", "<= 1.25", n)
	for name, s := range map[string]steadySamples{"linked": linked, "off": direct} {
		b.add("steady_throughput/"+name, s.throughput.median(), "MiB/s", "", n)
		b.add("steady_rps/"+name, s.rate.median(), "1/s", "", n)
		b.add("steady_p99_ms/"+name, s.p99.median(), "ms", "", n)
	}
	return nil
}

// steady is what one load measured: MiB/s, requests per second, and their 99th percentile in milliseconds.
type steady struct{ throughput, rate, p99 float64 }

type steadySamples struct{ throughput, rate, p99 samples }

func (s *steadySamples) add(one steady) {
	s.throughput = append(s.throughput, one.throughput)
	s.rate = append(s.rate, one.rate)
	s.p99 = append(s.p99, one.p99)
}

func (o *ours) load(ctx context.Context, p plan) (s steady, err error) {
	if s.throughput, err = o.download(ctx, p.download); err != nil {
		return s, fmt.Errorf("download from %s: %w", o.id, err)
	}
	if s.rate, s.p99, err = o.requests(ctx, time.Duration(p.loadMillis)*time.Millisecond); err != nil {
		return s, fmt.Errorf("requests to %s: %w", o.id, err)
	}
	return s, nil
}
