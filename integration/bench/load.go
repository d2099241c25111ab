package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	downloads   = 2 // connections of one download
	connections = 4 // that requests are sent over
)

// download reads mib MiB over a few connections at once and returns MiB/s.
func (o *ours) download(ctx context.Context, mib int) (float64, error) {
	g, ctx := errgroup.WithContext(ctx)
	began := time.Now()
	for range downloads {
		g.Go(func() error {
			url := fmt.Sprintf("http://%s/bytes?n=%d", o.address, mib/downloads*mebibyte)
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
			if err != nil {
				return err
			}
			answer, err := o.world.HTTP().Do(r)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			n, err := io.Copy(io.Discard, answer.Body)
			if err == nil && n != int64(mib/downloads*mebibyte) {
				err = fmt.Errorf("%d bytes came", n)
			}
			return err
		})
	}
	err := g.Wait()
	return float64(mib) / time.Since(began).Seconds(), err
}

// open asks n times over a connection of its own each, one after the other, and returns how many there were a second.
func (o *ours) open(ctx context.Context, n int) (float64, error) {
	began := time.Now()
	for range n {
		if _, err := o.client.once(ctx, o.address); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// requests asks over a few established connections for a while, and returns the rate and the 99th percentile in ms.
func (o *ours) requests(ctx context.Context, lasting time.Duration) (rate, p99 float64, err error) {
	g, ctx := errgroup.WithContext(ctx)
	var each [connections]samples
	var open []*established
	defer func() {
		for _, e := range open {
			e.conn.Close()
		}
	}()
	for range connections {
		e, err := establish(ctx, o.world, o.address)
		if err != nil {
			return 0, 0, err
		}
		open = append(open, e)
	}
	began := time.Now()
	for i, e := range open {
		g.Go(func() error {
			for time.Since(began) < lasting {
				took, err := e.ask(ctx)
				if err != nil {
					return err
				}
				each[i].add(took)
			}
			return nil
		})
	}
	err = g.Wait()
	elapsed := time.Since(began)
	var all samples
	for _, s := range each {
		all = append(all, s...)
	}
	return float64(len(all)) / elapsed.Seconds(), all.quantile(0.99), err
}
