package upload

import (
	"context"
)

// tellOlder says how many lineages are still wrapped with an older key, where some are configured.
func (u *Uploader) tellOlder(ctx context.Context) {
	if len(u.opts.Keys.Older) == 0 {
		return
	}
	needing, unread, all := 0, 0, 0
	err := u.Rewrap(ctx, "", true, func(r Rewrapped) error {
		all++
		switch {
		case r.Err != nil:
			unread++
		case !r.Already:
			needing++
		}
		return nil
	})
	log := u.opts.Log.With("needing", needing, "unreadable", unread, "all", all)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		log.Warn("which keys the snapshots in the store need could not be found out", "error", err)
	case needing > 0:
		log.Warn("snapshots in the store are wrapped with older keys, and are lost if those are: hibernatectl snapshots rewrap wraps them with the current one")
	case unread == 0:
		log.Info("no snapshot in the store needs an older key any more: take store-older-keys out of the configuration")
	}
}
