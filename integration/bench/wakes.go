package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// A pair is a container of ours and its raw twin, both asleep between measurements.
type pair struct {
	mib  int
	ours *ours
	raw  *raw

	wakeRaw, wakeNew, wakeOld, sleepRaw, sleepOurs samples
	wakeTail, rawTail                              samples             // beside the rounds
	stages                                         map[string]*samples // by transition and step
	slowest                                        time.Duration
	why                                            string // the slowest wake took so long
}

func newPair(ctx context.Context, b *bench, id string, mib int) (*pair, error) {
	p := &pair{mib: mib, stages: map[string]*samples{}}
	o, err := newOurs(ctx, b, id, mib, nil)
	if err != nil {
		return nil, err
	}
	p.ours = o
	if p.raw, err = newRaw(ctx, b, o); err != nil {
		p.raw = nil
		return nil, errors.Join(err, p.close())
	}
	p.raw.step = func(name string, took time.Duration) { p.stage("raw-"+name, milliseconds(took)) }
	return p, nil
}

// fallAsleep puts both to sleep for the first time, unmeasured.
func (p *pair) fallAsleep(ctx context.Context) error {
	_, _, err := p.ours.sleep(ctx)
	if err == nil {
		_, err = p.raw.sleep(ctx)
	}
	return err
}

func (p *pair) close() error {
	err := p.ours.close()
	if p.raw != nil {
		err = errors.Join(err, p.raw.close())
	}
	return err
}

// round measures each kind once, in an order that turns with i.
func (p *pair) round(ctx context.Context, i int) error {
	kinds := []func(context.Context) error{p.measureRaw, p.measureNew, p.measureOld}
	for k := range kinds {
		if err := kinds[(i+k)%len(kinds)](ctx); err != nil {
			return fmt.Errorf("%d MiB, round %d: %w", p.mib, i, err)
		}
	}
	return nil
}

func (p *pair) measureRaw(ctx context.Context) error { return p.rawInto(ctx, &p.wakeRaw) }

func (p *pair) rawInto(ctx context.Context, into *samples) error {
	took, err := p.raw.wake(ctx)
	if err != nil {
		return fmt.Errorf("raw wake: %w", err)
	}
	into.add(took)
	p.stage("raw-wake/after", milliseconds(took)-p.last("raw-wake/create")-p.last("raw-wake/restore"))
	if took, err = p.raw.sleep(ctx); err != nil {
		return fmt.Errorf("raw hibernation: %w", err)
	}
	p.sleepRaw.add(took)
	return nil
}

func (p *pair) measureNew(ctx context.Context) error { return p.wakeInto(ctx, &p.wakeNew) }

// measureTail adds to what a high percentile needs, for both: some of the slowest wakes are the machine's, and strike raw, too.
func (p *pair) measureTail(ctx context.Context) error {
	if err := p.wakeInto(ctx, &p.wakeTail); err != nil {
		return err
	}
	return p.rawInto(ctx, &p.rawTail)
}

func (p *pair) wakeInto(ctx context.Context, into *samples) error {
	began := time.Now()
	took, t, err := p.ours.wakeNew(ctx)
	if err != nil {
		return fmt.Errorf("wake by a new connection: %w", err)
	}
	into.add(took)
	p.noteWake("wake-new", t, began, took)
	return p.measureSleep(ctx)
}

func (p *pair) measureOld(ctx context.Context) error {
	began := time.Now()
	took, t, err := p.ours.wakeOld(ctx)
	if err != nil {
		return fmt.Errorf("wake by an established connection: %w", err)
	}
	p.wakeOld.add(took)
	p.noteWake("wake-old", t, began, took)
	return p.measureSleep(ctx)
}

func (p *pair) measureSleep(ctx context.Context) error {
	took, t, err := p.ours.sleep(ctx)
	if err != nil {
		return fmt.Errorf("hibernation: %w", err)
	}
	p.sleepOurs.add(took)
	p.note("hibernate", t)
	return nil
}

// noteWake keeps the steps' times, and what the client saw before the wake began and after its gate was open.
func (p *pair) noteWake(kind string, t *shimv1.Transition, began time.Time, took time.Duration) {
	p.note(kind, t)
	if took > p.slowest {
		p.slowest, p.why = took, fmt.Sprintf("%s: %v", kind, t)
	}
	before := float64(t.GetStartedUnixMs()-began.UnixMilli()) + 0.5 // the start is known in whole milliseconds
	p.stage(kind+"/before", before)
	for _, s := range t.GetSteps() {
		if s.GetName() == "open" {
			p.stage(kind+"/after", milliseconds(took)-before-s.GetStartMs()-s.GetMs())
		}
	}
}

func (p *pair) note(kind string, t *shimv1.Transition) {
	for _, s := range t.GetSteps() {
		p.stage(kind+"/"+s.GetName(), s.GetMs())
	}
	p.stage(kind+"/total", t.GetTotalMs())
}

// last is the newest time of a stage that was measured.
func (p *pair) last(name string) float64 {
	of := *p.stages[name]
	return of[len(of)-1]
}

func (p *pair) stage(name string, ms float64) {
	if p.stages[name] == nil {
		p.stages[name] = &samples{}
	}
	*p.stages[name] = append(*p.stages[name], ms)
}

// measureWakes is the main comparison: all sizes in turn, in each round.
func measureWakes(ctx context.Context, b *bench) (err error) {
	var pairs []*pair
	defer func() {
		for _, p := range pairs {
			err = errors.Join(err, p.close())
		}
	}()
	for _, mib := range b.plan.sizes {
		p, err := newPair(ctx, b, fmt.Sprintf("heap-%d", mib), mib)
		if err != nil {
			return err
		}
		pairs = append(pairs, p)
		if err := p.fallAsleep(ctx); err != nil {
			return err
		}
	}
	for i := range b.plan.rounds {
		for _, p := range pairs {
			if err := p.round(ctx, i); err != nil {
				return err
			}
			for p.mib == tailSize && len(p.wakeNew)+len(p.wakeTail) < b.plan.tail*(i+1)/b.plan.rounds {
				if err := p.measureTail(ctx); err != nil {
					return err
				}
			}
		}
	}
	for _, p := range pairs {
		p.tell(b)
	}
	return nil
}

// tell adds the pair's figures to the report.
func (p *pair) tell(b *bench) {
	raw := p.wakeRaw.median()
	at := fmt.Sprint("/", p.mib)
	b.add("wake_new_over_raw_p50"+at, p.wakeNew.median()/raw, "ratio", "<= 1.15", len(p.wakeNew))
	b.add("wake_established_over_raw_p50"+at, p.wakeOld.median()/raw, "ratio", "<= 1.2", len(p.wakeOld))
	goal := ""
	if p.mib == tailSize {
		goal = "<= 1.5"
		all := append(p.wakeNew, p.wakeTail...)
		b.add("wake_new_p99_over_p50"+at, all.quantile(0.99)/all.median(), "ratio", "<= 2", len(all))
		rawAll := append(p.wakeRaw, p.rawTail...)
		b.add("raw_p99_over_p50"+at, rawAll.quantile(0.99)/rawAll.median(), "ratio", "", len(rawAll))
	}
	b.add("hibernate_over_raw_p50"+at, p.sleepOurs.median()/p.sleepRaw.median(), "ratio", goal, len(p.sleepOurs))
	for _, f := range []struct {
		name string
		of   samples
	}{
		{"raw_ms_p50", p.wakeRaw}, {"wake_new_ms_p50", p.wakeNew}, {"wake_established_ms_p50", p.wakeOld},
		{"raw_hibernate_ms_p50", p.sleepRaw}, {"hibernate_ms_p50", p.sleepOurs},
	} {
		b.add(f.name+at, f.of.median(), "ms", "", len(f.of))
	}
	b.tellStages(p)
	fmt.Fprintf(os.Stderr, "bench: the slowest wake with %d MiB took %.0f ms; %s\n", p.mib, milliseconds(p.slowest), p.why)
}
