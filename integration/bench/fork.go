package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// forkCount is how many children one fork makes.
const forkCount = 10

// measureForks compares the first child of a fork with a wake of the forked workload itself, and a start from a template with a wake.
func measureForks(ctx context.Context, b *bench) (err error) {
	parent, err := newOurs(ctx, b, "parent", tailSize, map[string]string{"identity": "parent", "template": "true"})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, parent.close()) }()
	if _, _, err := parent.sleep(ctx); err != nil {
		return err
	}
	var wake, call, first, whole, warm, frozen samples
	before := used(parent.world.Path(parent.world.DataDir()))
	var share float64
	for round := range b.plan.move.forks {
		took, _, err := parent.wakeNew(ctx)
		if err != nil {
			return err
		}
		wake.add(took)
		f, _, err := parent.fork(ctx, fmt.Sprint("live", round), 1) // of what is awake
		if err != nil {
			return err
		}
		frozen.addValue(float64(f.GetFrozenMs()))
		if _, _, err := parent.sleep(ctx); err != nil {
			return err
		}
		had := used(parent.world.Path(parent.world.DataDir()))
		_, made, err := parent.fork(ctx, fmt.Sprint("child", round), forkCount)
		if err != nil {
			return err
		}
		share = float64(used(parent.world.Path(parent.world.DataDir()))-had) / float64(forkCount*max(before, 1))
		call.add(made)
		answered, woken, err := b.begin(ctx, fmt.Sprint("c", round), map[string]string{"identity": fmt.Sprintf("child%d-1", round)})
		if err != nil {
			return err
		}
		whole.add(made + answered)
		first.add(made + woken)
		_, woken, err = b.begin(ctx, fmt.Sprint("w", round), map[string]string{"restore": "parent"})
		if err != nil {
			return err
		}
		warm.add(woken)
	}
	n := len(wake)
	b.add("fork_first_over_local/128", first.median()/wake.median(), "ratio", "<= 1.3", n)
	b.add("fork_disk_share", share, "of copies", "<= 0.05", n)
	b.add("warm_start_over_wake", warm.median()/wake.median(), "ratio", "<= 1.1", n)
	b.add("fork_wake_ms_p50/128", wake.median(), "ms", "", n)
	b.add("fork_call_ms_p50/10", call.median(), "ms", "", n)
	b.add("fork_container_ms_p50", whole.median(), "ms", "", n)
	b.add("fork_frozen_ms_p50/128", frozen.median(), "ms", "", n)
	return measurePools(ctx, b)
}

// fork makes children NAME-1, NAME-2, …
func (o *ours) fork(ctx context.Context, name string, n int) (*shimv1.ForkResponse, time.Duration, error) {
	r := &shimv1.ForkRequest{}
	for i := range n {
		r.Identities = append(r.Identities, fmt.Sprintf("%s-%d", name, i+1))
	}
	began := time.Now()
	f, err := o.shim.Fork(ctx, r)
	return f, time.Since(began), err
}

// begin runs a container that goes on from a snapshot, and tells how long it took from `ctr run` to the first answer, and of that the wake.
func (b *bench) begin(ctx context.Context, id string, annotations map[string]string) (answered, woken time.Duration, err error) {
	o, err := prepare(ctx, b, id)
	if err != nil {
		return 0, 0, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	began := time.Now()
	if _, err := o.world.Run(ctx, harness.Container{
		ID: id, Image: o.image, NetNS: o.pod.Path, Detach: true, Annotations: annotations, Env: []string{fmt.Sprint("TESTSERVER_MIB=", tailSize)},
	}); err != nil {
		return 0, 0, err
	}
	at, err := o.client.again(ctx, o.address)
	if err != nil {
		return 0, 0, err
	}
	if err := o.connect(ctx); err != nil {
		return 0, 0, err
	}
	s, err := o.shim.Status(ctx, &shimv1.StatusRequest{})
	if err != nil {
		return 0, 0, err
	}
	t := s.GetLastWake()
	if t.GetOutcome() != "restored" {
		return 0, 0, fmt.Errorf("%s was %s: %s", id, t.GetOutcome(), t.GetDetail())
	}
	open := t.GetTotalMs() // of a wake that goes on loading the end of its gate's opening counts
	for _, s := range t.GetSteps() {
		if s.GetName() == "open" {
			open = s.GetStartMs() + s.GetMs()
		}
	}
	return at.Sub(began), time.Duration(open * float64(time.Millisecond)), nil
}

// used is what a directory takes of the disk in bytes, files with several names once.
func used(dir string) (bytes int64) {
	seen := make(map[uint64]bool)
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // what goes while it is looked at
		}
		if info, err := d.Info(); err == nil {
			st := info.Sys().(*syscall.Stat_t)
			if !seen[st.Ino] {
				seen[st.Ino] = true
				bytes += st.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}
