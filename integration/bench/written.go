package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// writtenMiB is how much a container has written to its root file system.
const writtenMiB = 1024

// measureWritten compares wakes of containers that have written much.
func measureWritten(ctx context.Context, b *bench) (err error) {
	p, err := newPair(ctx, b, "written", 16)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	for _, at := range []netip.AddrPort{p.ours.address, p.raw.address} {
		if err := writeFiles(ctx, b.world, at); err != nil {
			return err
		}
	}
	if err := p.fallAsleep(ctx); err != nil {
		return err
	}
	for i := range b.plan.written {
		for k := range 2 {
			measure := []func(context.Context) error{p.measureRaw, p.measureNew}[(i+k)%2]
			if err := measure(ctx); err != nil {
				return err
			}
		}
	}
	at := fmt.Sprint("/", writtenMiB)
	b.add("wake_written_over_raw"+at, p.wakeNew.median()/p.wakeRaw.median(), "ratio", "<= 1.15", len(p.wakeNew))
	b.add("raw_written_ms_p50"+at, p.wakeRaw.median(), "ms", "", len(p.wakeRaw))
	b.add("wake_written_ms_p50"+at, p.wakeNew.median(), "ms", "", len(p.wakeNew))
	b.add("hibernate_written_over_raw"+at, p.sleepOurs.median()/p.sleepRaw.median(), "ratio", "", len(p.sleepOurs))
	return nil
}

// writeFiles writes in four files.
func writeFiles(ctx context.Context, w *harness.World, to netip.AddrPort) error {
	for i := range 4 {
		url := fmt.Sprintf("http://%s/write?path=/var-%d&mib=%d", to, i, writtenMiB/4)
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
		if err != nil {
			return err
		}
		answer, err := w.HTTP().Do(r)
		if err != nil {
			return err
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, answer.Status)
		}
	}
	return nil
}
