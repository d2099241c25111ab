package upload

import (
	"context"
	"errors"
	"fmt"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// ErrQuota: a workload's snapshots would take more in the store than store-quota allows.
var ErrQuota = errors.New("over store-quota")

// commit commits within the quota. For that the oldest generations go that are not pinned, one after the other, but never the newest:
// what the store has is not given up for what it may not get.
func (u *Uploader) commit(ctx context.Context, name string, tier *durable.Lineage, image durable.Image, o durable.CommitOptions) (durable.Result, error) {
	if u.opts.Quota <= 0 {
		return tier.Commit(ctx, image, o)
	}
	for {
		used, err := tier.Usage(ctx)
		if err != nil {
			return durable.Result{}, err
		}
		if o.Limit = u.opts.Quota - used; o.Limit > 0 {
			result, err := tier.Commit(ctx, image, o)
			if !errors.Is(err, durable.ErrLimit) {
				return result, err
			}
		}
		head, err := tier.Head(ctx)
		if err != nil {
			return durable.Result{}, err
		}
		g, ok := expendable(head)
		if !ok {
			return durable.Result{}, fmt.Errorf("%w: %d bytes of %d are taken, and the new snapshot needs more than what is left: raise store-quota, or remove or unpin some (hibernatectl snapshots)",
				ErrQuota, used, u.opts.Quota)
		}
		if err := tier.Remove(ctx, g.Sequence); err != nil {
			return durable.Result{}, err
		}
		u.opts.Log.Warn("a snapshot in the store has made room for a newer one: store-quota", "name", name, "sequence", g.Sequence, "taken", used, "quota", u.opts.Quota)
	}
}

// expendable is the oldest generation that may go for a newer one.
func expendable(head durable.Head) (g durable.Generation, ok bool) {
	for _, one := range head.Generations[min(1, len(head.Generations)):] {
		if !one.Pinned && one.Sequence != head.Restoring {
			g, ok = one, true
		}
	}
	return g, ok
}
