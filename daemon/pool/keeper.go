package pool

import (
	"context"
	"log/slog"
	"strconv"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

const (
	lookEvery = time.Second      // between two looks at who is ready
	failAgain = 30 * time.Second // after a failure, before the same is tried again
	goneAfter = 30 * time.Second // that a template must be away, as while its container is started anew
	runLimit  = 10 * time.Minute // of one filling
)

// Keeper has pools filled, and emptied when their template is gone.
type Keeper struct {
	RunDir string
	List   func() []*node.Workload
	// Ctl runs hibernatectl with these arguments. The error has what it said.
	Ctl func(ctx context.Context, args ...string) error
	Log *slog.Logger

	failed map[string]time.Time // by what was tried
	gone   map[Pool]time.Time   // since when a pool has no template
}

// Run looks again and again, until ctx ends.
func (k *Keeper) Run(ctx context.Context) {
	k.failed, k.gone = make(map[string]time.Time), make(map[Pool]time.Time)
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			k.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

func (k *Keeper) look(ctx context.Context) {
	templates := make(map[Pool]bool)
	for _, w := range k.List() {
		s := w.Status()
		if s.GetIdentity() == "" {
			continue
		}
		p := Of(k.RunDir, w.Namespace, s.GetIdentity())
		templates[p] = true
		want := wanted(s)
		if want == 0 {
			continue
		}
		ready, err := p.Ready()
		if err != nil {
			k.Log.Error("pool", "namespace", w.Namespace, "id", w.ID, "error", err)
			continue
		}
		current := 0
		for _, m := range ready {
			if m.Sequence == s.GetSequence() {
				current++
			}
		}
		if current < want {
			k.run(ctx, "pool", "fill", w.Key.String())
		}
	}
	k.lookForGone(ctx, templates)
}

// wanted is how many are to be ready: none where the workload is no template that has slept.
func wanted(s *shimv1.StatusResponse) (n int) {
	template := false
	for _, k := range s.GetSettings() {
		switch k.GetKey() {
		case "pool":
			n, _ = strconv.Atoi(k.GetValue())
		case "template":
			template = k.GetValue() == "true"
		}
	}
	if !template || s.GetSequence() == 0 || s.GetState() != "asleep" && s.GetState() != "awake" {
		return 0
	}
	return n
}

func (k *Keeper) lookForGone(ctx context.Context, templates map[Pool]bool) {
	pools, err := All(k.RunDir)
	if err != nil {
		k.Log.Error("pools", "error", err)
		return
	}
	for _, p := range pools {
		if templates[p] {
			delete(k.gone, p)
			continue
		}
		if since, ok := k.gone[p]; !ok {
			k.gone[p] = time.Now()
		} else if time.Since(since) >= goneAfter && k.run(ctx, "pool", "empty", "--gone") {
			delete(k.gone, p)
		}
	}
}

// run has hibernatectl do something, unless it has just failed.
func (k *Keeper) run(ctx context.Context, args ...string) (ok bool) {
	what := args[len(args)-1]
	if at, failed := k.failed[what]; failed && time.Since(at) < failAgain {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, runLimit)
	defer cancel()
	if err := k.Ctl(ctx, args...); err != nil {
		if ctx.Err() == nil {
			k.failed[what] = time.Now()
			k.Log.Warn("a pool could not be kept: it is tried again", "what", args, "error", err)
		}
		return false
	}
	delete(k.failed, what)
	return true
}
