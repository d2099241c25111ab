package sandbox

import (
	"context"

	"github.com/hibernate-runtime/hibernate/network"
)

// watchUse notes whose packets are use, for whoever asks why the workload is awake, until ctx ends.
func (w *Workload) watchUse(ctx context.Context) {
	err := w.link.Uses(ctx, func(u network.Use) {
		said := u.String()
		w.mu.Lock()
		defer w.mu.Unlock()
		w.lastUse = said
	})
	if err != nil {
		w.opts.Log.Warn("nobody will be told whose packets keep it awake", "error", err)
	}
}
