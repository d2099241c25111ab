package keeper_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/keeper"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// One that a person wants awake doesn't sleep by itself, nor for another's sake, until that is over.
func TestFrozenStaysAwake(t *testing.T) {
	shim := idler(t, "redis", "auto")
	var frozen atomic.Bool
	frozen.Store(true)
	k, view := keep(t, keeper.Options{Frozen: func(node.Key) string {
		if frozen.Load() {
			return "the release"
		}
		return ""
	}}, shim)
	eventually(t, "it says why", func() bool { return firstCode(k, view) == idle.Frozen })
	before := shim.Samples()
	eventually(t, "it was looked at again", func() bool { return shim.Samples() > before+20 }) // longer than its idle timeout
	k.MakeRoom(context.Background(), 1<<40)
	if got := shim.Hibernations(); len(got) != 0 || k.Evictable() != 0 {
		t.Errorf("it was put to sleep: %v", got)
	}
	frozen.Store(false)
	eventually(t, "it sleeps", func() bool { return view.List()[0].State() == "asleep" })
}

// What was judged before a freeze, and is looked at again seconds later only, makes no room meanwhile.
func TestAFreezeCountsAtOnce(t *testing.T) {
	shim := idler(t, "redis", "auto")
	shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { a.IdleTimeoutMs = 300_000 })
	var frozen atomic.Bool
	k, view := keep(t, keeper.Options{Frozen: func(node.Key) string {
		if frozen.Load() {
			return "the release"
		}
		return ""
	}}, shim)
	eventually(t, "it is idle for long enough", func() bool {
		all := view.List()
		if len(all) == 0 {
			return false
		}
		j, ok := k.Judgement(all[0])
		return ok && all[0].State() == idle.Awake && j.SleepsIn != idle.Never && time.Since(j.At)+j.IdleFor > 1100*time.Millisecond
	})
	frozen.Store(true)
	k.MakeRoom(context.Background(), 1<<40)
	if got := shim.Hibernations(); len(got) != 0 {
		t.Errorf("it was put to sleep: %v", got)
	}
	frozen.Store(false)
	k.MakeRoom(context.Background(), 1<<40)
	if got := shim.Hibernations(); len(got) != 1 {
		t.Errorf("not frozen, it was asked %d times", len(got))
	}
}
