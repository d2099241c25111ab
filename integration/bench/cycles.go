package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// warmCycles are those after which nothing may grow any more.
const warmCycles = 10

// measureCycles has one container sleep and wake in a row, and compares what its shim uses after the tenth cycle and after
// the last.
func measureCycles(ctx context.Context, b *bench) (err error) {
	o, err := newOurs(ctx, b, "cycles", 16, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	var early, late usage
	restored := 0
	for i := range b.plan.cycles {
		if _, _, err := o.sleep(ctx); err != nil {
			return err
		}
		if _, _, err := o.wakeNew(ctx); err != nil {
			return fmt.Errorf("cycle %d: %w", i+1, err)
		}
		if err := o.count(ctx, i+1); err != nil {
			return err
		}
		restored++
		if i+1 == warmCycles {
			early, err = o.use(ctx)
		}
		if err != nil {
			return err
		}
	}
	if late, err = o.use(ctx); err != nil {
		return err
	}
	n := b.plan.cycles
	b.add("cycles_restored", float64(restored), "cycles", fmt.Sprint(">= ", n), n)
	for i, name := range kinds {
		b.add("cycles_growth_"+name, late.counts[i]-early.counts[i], name, "<= 0", n-warmCycles)
	}
	b.add("cycles_growth_shim_pss_mib", late.pss-early.pss, "MiB", "<= 1", n-warmCycles)
	b.add("cycles_shim_pss_mib", late.pss, "MiB", "", 1)
	return nil
}

// count looks whether the state went on: the server counts the requests.
func (o *ours) count(ctx context.Context, want int) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("http://%s/counter", o.address), nil)
	if err != nil {
		return err
	}
	answer, err := o.world.HTTP().Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	if err == nil && strings.TrimSpace(string(got)) != fmt.Sprint(want) {
		err = fmt.Errorf("the counter is %q after cycle %d", got, want)
	}
	return err
}

// kinds are what a cycle could leave behind.
var kinds = []string{"descriptors", "namespaces", "routes", "nft_rules"}

// usage is what there is at a moment: as many of each kind, and the shim's memory in MiB.
type usage struct {
	counts [4]float64
	pss    float64
}

// use counts in the node's namespace and in the pod's, once nothing goes on beside the traffic any more.
func (o *ours) use(ctx context.Context) (u usage, err error) {
	select {
	case <-ctx.Done():
		return u, context.Cause(ctx)
	case <-time.After(5 * settle):
	}
	record, err := o.world.Record(o.id)
	if err != nil {
		return u, err
	}
	descriptors, err := harness.Descriptors(record.Pid)
	if err != nil {
		return u, err
	}
	out, err := o.world.Shell(ctx, fmt.Sprintf(`
ls /run/netns %[2]s/netns/* | wc -l
for n in '' '-n %[1]s'; do ip $n rule; ip $n route show table all; ip $n neigh show nud permanent; ip $n link; done | wc -l
{ nft list ruleset; ip netns exec %[1]s nft list ruleset; } | wc -l`, o.pod.Name, o.world.RunDir()))
	if err != nil {
		return u, err
	}
	u.counts[0] = float64(descriptors)
	if _, err := fmt.Sscan(out, &u.counts[1], &u.counts[2], &u.counts[3]); err != nil {
		return u, fmt.Errorf("count %q: %w", out, err)
	}
	pss, err := harness.PSS(record.Pid)
	u.pss = float64(pss) / mebibyte
	return u, err
}
