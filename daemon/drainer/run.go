package drainer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/wakeproxy"
)

// Why connections are reset before their end.
var (
	ErrShimGone = errors.New("the workload's shim is gone, and its end of the connection with it")
	ErrLimit    = errors.New("the time for connections of an earlier daemon is over")
)

// lookEach is the pause between two looks whether the shims still run.
const lookEach = 500 * time.Millisecond

// Run is a drainer's life: it reads what it is to carry on, and returns when the last connection has ended, or when it has reset
// what was left because ctx ended.
func Run(ctx context.Context, told io.Reader, log *slog.Logger) error {
	var p plan
	if err := json.NewDecoder(told).Decode(&p); err != nil {
		return fmt.Errorf("standard input does not tell what to carry on: %w", err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, p.Limit, ErrLimit)
	defer cancel()
	proxy := wakeproxy.New(wakeproxy.Options{Log: log})
	var all sync.WaitGroup
	for _, w := range p.Workloads {
		all.Go(func() { w.carryOn(ctx, proxy, p.RunDir, log.With("namespace", w.Namespace, "id", w.ID)) })
	}
	all.Wait()
	return proxy.Shutdown(context.WithoutCancel(ctx))
}

// carryOn returns when the workload's connections have ended.
func (w Workload) carryOn(ctx context.Context, proxy *wakeproxy.Proxy, runDir string, log *slog.Logger) {
	began := time.Now()
	log.Info("connections of a daemon that ends are carried on", "connections", len(w.Connections))
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var conns, watch sync.WaitGroup
	for _, d := range w.Connections {
		conns.Go(func() {
			err := proxy.Resume(ctx, d)
			log.Debug("connection ended", "port", d.Port, "client", d.Client.String(), "error", err)
		})
	}
	watch.Go(func() { w.watchShim(ctx, runDir, cancel) })
	conns.Wait()
	if err := context.Cause(ctx); err != nil {
		log.Warn("connections were reset", "reason", err)
	}
	cancel(nil)
	watch.Wait()
	log.Info("connections of an earlier daemon have ended", "seconds", int(time.Since(began).Seconds()))
}

// watchShim ends the connections when the shim is no longer the one that it was.
func (w Workload) watchShim(ctx context.Context, runDir string, end context.CancelCauseFunc) {
	first, err := handover.ReadRecord(runDir, w.Namespace, w.ID)
	look := time.NewTicker(lookEach)
	defer look.Stop()
	for {
		if err != nil || !first.Alive() {
			end(ErrShimGone)
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		var now handover.Record
		if now, err = handover.ReadRecord(runDir, w.Namespace, w.ID); err == nil && now.StartTime != first.StartTime {
			err = ErrShimGone
		}
	}
}
