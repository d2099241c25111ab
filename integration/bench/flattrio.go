package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// A trio is a workload whose wakes are flat, its twins by plain files and by runsc alone; all sleep between measurements.
type trio struct {
	mib         int
	flat, plain *ours
	raw         *raw

	flatFirst, plainFirst, rawFirst samples
	flatLoaded, plainLoaded         samples
}

func newTrio(ctx context.Context, b *bench, mib int) (_ *trio, err error) {
	t := &trio{mib: mib}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.flat, err = newLoaded(ctx, b, flatLoad, mib); err != nil {
		return nil, err
	}
	if t.plain, err = newLoaded(ctx, b, plainLoad, mib); err != nil {
		return nil, err
	}
	if t.raw, err = newRaw(ctx, b, t.flat); err != nil {
		t.raw = nil
		return nil, err
	}
	_, _, err = t.flat.sleep(ctx)
	if err == nil {
		_, _, err = t.plain.sleep(ctx)
	}
	if err == nil {
		_, err = t.raw.sleep(ctx)
	}
	return t, err
}

func (t *trio) close() error {
	var errs []error
	for _, o := range []*ours{t.flat, t.plain} {
		if o != nil {
			errs = append(errs, o.close())
		}
	}
	if t.raw != nil {
		errs = append(errs, t.raw.close())
	}
	return errors.Join(errs...)
}

// round measures each once, in an order that turns with i.
func (t *trio) round(ctx context.Context, i int) error {
	kinds := []func(context.Context) error{t.measureFlat, t.measurePlain, t.measureRaw}
	for k := range kinds {
		if err := kinds[(i+k)%len(kinds)](ctx); err != nil {
			return fmt.Errorf("%d MiB, round %d: %w", t.mib, i, err)
		}
	}
	return nil
}

func (t *trio) measureFlat(ctx context.Context) error {
	w, err := t.flat.wakeAll(ctx, flatLoad)
	if err == nil {
		t.flatFirst.add(w.first)
		t.flatLoaded.add(w.loaded)
	}
	return err
}

func (t *trio) measurePlain(ctx context.Context) error {
	w, err := t.plain.wakeAll(ctx, plainLoad)
	if err == nil {
		t.plainFirst.add(w.first)
		t.plainLoaded.add(w.loaded)
	}
	return err
}

func (t *trio) measureRaw(ctx context.Context) error {
	if err := awaitDisk(ctx, t.flat.world.Path(t.flat.world.DataDir())); err != nil {
		return err
	}
	took, err := t.raw.wake(ctx)
	if err != nil {
		return fmt.Errorf("raw wake: %w", err)
	}
	t.rawFirst.add(took)
	_, err = t.raw.sleep(ctx)
	return err
}

// Goals of a flat wake over a plain one, by MiB of heap.
var flatOverPlain = map[int]string{16: "<= 1.05", 128: "<= 1.05", 1024: "<= 0.5", 3072: "<= 0.3"}

// measureFlatSizes has each heap's three be woken in turn, one heap after the other: the large ones need the memory.
func measureFlatSizes(ctx context.Context, b *bench) error {
	first := map[int]samples{}
	for _, mib := range b.plan.flatSizes {
		began := time.Now()
		t, err := newTrio(ctx, b, mib)
		if err != nil {
			return err
		}
		for i := range b.plan.flatRounds {
			if err = t.round(ctx, i); err != nil {
				break
			}
		}
		if err = errors.Join(err, t.close()); err != nil {
			return err
		}
		t.tell(b)
		first[mib] = t.flatFirst
		fmt.Fprintf(os.Stderr, "bench: sizes: %d MiB: %.0f s\n", mib, time.Since(began).Seconds())
	}
	if small, large := first[16], first[3072]; len(small) > 0 && len(large) > 0 {
		b.addStage("flat_3072_over_16_p50/sizes", large.median()/small.median(), len(large))
	}
	return nil
}

func (t *trio) tell(b *bench) {
	at := fmt.Sprint("/", t.mib)
	n := len(t.flatFirst)
	b.add("flat_over_plain_p50"+at, t.flatFirst.median()/t.plainFirst.median(), "ratio", flatOverPlain[t.mib], n)
	worst, loaded := "", ""
	if t.mib == 1024 {
		worst, loaded = "<= 1.1", "<= 1.6"
	}
	b.add("flat_worst_over_plain"+at, t.flatFirst.quantile(1)/t.plainFirst.median(), "ratio", worst, n)
	b.add("flat_loaded_over_plain"+at, t.flatLoaded.median()/t.plainLoaded.median(), "ratio", loaded, n)
	for _, f := range []struct {
		name string
		of   samples
	}{
		{"flat_ms_p50", t.flatFirst}, {"plain_ms_p50", t.plainFirst}, {"flat_raw_ms_p50", t.rawFirst},
		{"flat_loaded_ms_p50", t.flatLoaded}, {"plain_loaded_ms_p50", t.plainLoaded},
	} {
		b.add(f.name+at, f.of.median(), "ms", "", n)
	}
	b.add("flat_ms_max"+at, t.flatFirst.quantile(1), "ms", "", n)
	b.add("plain_ms_max"+at, t.plainFirst.quantile(1), "ms", "", n)
}
