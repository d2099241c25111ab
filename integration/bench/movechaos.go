package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hibernate-runtime/hibernate/integration/executors"
)

// executorsRuns is how many runs one pair of nodes is used for.
const executorsRuns = 15

// measureExecutors has everything fail at random while a workload moves between two nodes, and counts what a witness outside of both heard that may not be.
func measureExecutors(ctx context.Context, b *bench) error {
	way, err := newDoor(b.world, b.bucket.address)
	if err != nil {
		return err
	}
	defer way.close()
	var doubles, lost, left, runs int
	for n := 0; n < b.plan.move.chaos; n += executorsRuns {
		f := &executors.Field{Store: executors.Store{
			Server: &mortal{ctx, b}, Address: way.address(), Bucket: bucketName, Credentials: filepath.Join(b.bucket.dir, "credentials"), Key: b.bucket.key,
		}}
		if err := f.Open(ctx); err != nil {
			return err
		}
		for k := n; k < min(n+executorsRuns, b.plan.move.chaos); k++ {
			seed := b.plan.store.seed + uint64(k)
			r, err := f.Run(ctx, seed)
			if err != nil {
				return errors.Join(fmt.Errorf("seed %d: %w\n%s", seed, err, r), f.Close())
			}
			runs++
			if doubles, lost, left = doubles+len(r.Doubles), lost+len(r.Lost), left+len(r.Left); r.Failed() {
				fmt.Fprintf(os.Stderr, "bench: seed %d:\n%s\n", seed, r)
			}
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	b.add("chaos_runs", float64(runs), "runs", "", runs)
	b.add("chaos_double_executors", float64(doubles), "times", "<= 0", runs)
	b.add("chaos_lost", float64(lost), "snapshots", "<= 0", runs)
	b.add("chaos_left", float64(left), "things", "<= 0", runs)
	return nil
}
