package sandbox

import (
	"context"
	"sync"

	"github.com/hibernate-runtime/hibernate/network"
)

// watchUse notes whose packets are use, for whoever asks why the workload is awake, and judges
// connections that may be probes, until ctx ends.
func (w *Workload) watchUse(ctx context.Context) {
	var judging sync.WaitGroup
	defer judging.Wait()
	if len(w.config.Probes) > 0 {
		judging.Go(func() { w.judgeProbes(ctx) })
	}
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
