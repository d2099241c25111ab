package keeper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/keeper"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
	"github.com/hibernate-runtime/hibernate/internal/testlog"
)

// keep follows shims with a keeper until the test ends.
func keep(t *testing.T, opts keeper.Options, shims ...*shimtest.Shim) (*keeper.Keeper, *node.View) {
	t.Helper()
	opts.Policy.Interval = 10 * time.Millisecond
	k := keeper.New(opts)
	view := node.Open(node.Options{
		Dial:  func(address string) node.Shim { return shimclient.New(address) },
		Scan:  func() ([]node.Found, error) { return found(shims), nil },
		Roles: []func(context.Context, *node.Workload){k.Follow},
	})
	t.Cleanup(view.Close)
	return k, view
}

func found(shims []*shimtest.Shim) []node.Found {
	var all []node.Found
	for _, shim := range shims {
		all = append(all, node.Found{Key: node.Key{Namespace: shim.Namespace, ID: shim.ID}, Address: shim.Address})
	}
	return all
}

// idler starts a shim whose workload is idle soon.
func idler(t *testing.T, id, mode string) *shimtest.Shim {
	shim := shimtest.Start(t, "default", id)
	shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) {
		a.Mode, a.IdleTimeoutMs, a.MinAwakeMs = mode, 100, 0
	})
	return shim
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for timeout := time.After(10 * time.Second); ; {
		if condition() {
			return
		}
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func firstCode(k *keeper.Keeper, view *node.View) idle.Code {
	all := view.List()
	if len(all) == 0 {
		return ""
	}
	j, _ := k.Judgement(all[0])
	if len(j.Reasons) == 0 {
		return ""
	}
	return j.Reasons[0].Code
}

func TestSleepsWhenIdle(t *testing.T) {
	shim := idler(t, "redis", "auto")
	_, view := keep(t, keeper.Options{}, shim)
	eventually(t, "it sleeps", func() bool { return view.List()[0].State() == "asleep" })
	if got := len(shim.Hibernations()); got != 1 {
		t.Errorf("asked %d times", got)
	}
}

func TestAsleepIsLeftAlone(t *testing.T) {
	shim := idler(t, "redis", "auto")
	shim.State("asleep")
	_, view := keep(t, keeper.Options{}, shim)
	eventually(t, "it was sampled", func() bool { return shim.Samples() > 0 && view.List()[0].State() == "asleep" })
	asleep := shim.Samples()
	busy := idler(t, "busy", "manual") // something to measure the time by
	keep(t, keeper.Options{}, busy)
	eventually(t, "the other one was sampled", func() bool { return busy.Samples() > 20 })
	if got := shim.Samples(); got > asleep+2 {
		t.Errorf("a sleeper was sampled %d times", got-asleep)
	}
	shim.State("awake")
	eventually(t, "the wake is noticed", func() bool { return shim.Samples() > asleep+2 })
}

func TestRefusalIsShownAndBacksOff(t *testing.T) {
	for want, err := range map[idle.Code]error{
		idle.Refused: fmt.Errorf("no room on the disk: %w", errdefs.ErrFailedPrecondition),
		idle.Failed:  errors.New("no room on the disk"),
	} {
		t.Run(string(want), func(t *testing.T) {
			shim := idler(t, "redis", "auto")
			shim.OnHibernate(func(context.Context) error { return err })
			var outcome atomic.Value
			k, view := keep(t, keeper.Options{Refused: func(o string) { outcome.Store(o) }}, shim)
			eventually(t, "the reason is shown", func() bool { return firstCode(k, view) == want })
			j, _ := k.Judgement(view.List()[0])
			if !strings.Contains(j.Reasons[0].Detail, "no room on the disk") || j.SleepsIn < 5*time.Second {
				t.Errorf("reason %q, sleeps in %s", j.Reasons[0].Detail, j.SleepsIn)
			}
			if got := outcome.Load(); got != string(want) {
				t.Errorf("counted as %v", got)
			}
		})
	}
}

func TestAbortRestartsTheClock(t *testing.T) {
	shim := idler(t, "redis", "auto")
	tries := 0
	shim.OnHibernate(func(context.Context) error {
		if tries++; tries == 1 {
			return fmt.Errorf("a client came: %w", errdefs.ErrAborted)
		}
		return nil
	})
	_, view := keep(t, keeper.Options{}, shim)
	eventually(t, "it sleeps at the second attempt", func() bool { return view.List()[0].State() == "asleep" })
	if got := len(shim.Hibernations()); got != 2 {
		t.Errorf("asked %d times", got)
	}
}

func TestObserveOnlyTells(t *testing.T) {
	var log testlog.Buffer
	shim := idler(t, "redis", "observe")
	shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { a.MemoryBytes = 7 << 20 })
	var observed atomic.Uint64
	keep(t, keeper.Options{
		Log:      slog.New(slog.NewTextHandler(&log, nil)),
		Observed: func(namespace string, bytes uint64) { observed.Add(bytes + uint64(len(namespace))) },
	}, shim)
	eventually(t, "it tells", func() bool { return strings.Contains(log.String(), "would hibernate") })
	told := shim.Samples()
	eventually(t, "it goes on sampling", func() bool { return shim.Samples() > told+10 })
	if n := strings.Count(log.String(), "would hibernate"); n != 1 || len(shim.Hibernations()) != 0 {
		t.Errorf("told %d times, hibernated %d times", n, len(shim.Hibernations()))
	}
	if n := observed.Load(); n != 7<<20+uint64(len("default")) {
		t.Errorf("counted as %d", n)
	}
}

func TestConcurrencyIsBounded(t *testing.T) {
	var running, most atomic.Int32
	var shims []*shimtest.Shim
	for i := range 8 {
		shim := idler(t, fmt.Sprintf("w%d", i), "auto")
		shim.OnHibernate(func(ctx context.Context) error {
			now := running.Add(1)
			for old := most.Load(); now > old && !most.CompareAndSwap(old, now); old = most.Load() {
			}
			defer running.Add(-1)
			pause := time.NewTimer(20 * time.Millisecond) // the work
			defer pause.Stop()
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
			return nil
		})
		shims = append(shims, shim)
	}
	_, view := keep(t, keeper.Options{Concurrent: 2}, shims...)
	eventually(t, "all sleep", func() bool {
		for _, w := range view.List() {
			if w.State() != "asleep" {
				return false
			}
		}
		return true
	})
	if got := most.Load(); got > 2 {
		t.Errorf("%d hibernated at once", got)
	}
}

// TestHangingHibernationGivesItsSlotUp: the others sleep all the same.
func TestHangingHibernationGivesItsSlotUp(t *testing.T) {
	hung, quick := idler(t, "hung", "auto"), idler(t, "quick", "auto")
	hung.OnHibernate(func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	setTimeout := func(ms int64) {
		quick.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) { a.IdleTimeoutMs = ms })
	}
	setTimeout(time.Hour.Milliseconds())
	_, view := keep(t, keeper.Options{Concurrent: 1, SlotTimeout: 500 * time.Millisecond, HibernateTimeout: 5 * time.Second}, hung, quick)
	eventually(t, "the hung one is asked", func() bool { return len(hung.Hibernations()) == 1 })
	setTimeout(100)
	eventually(t, "the other one sleeps", func() bool {
		return view.Get(node.Key{Namespace: "default", ID: "quick"}).State() == "asleep"
	})
	if got := len(hung.Hibernations()); got != 1 {
		t.Errorf("the hung one was asked %d times", got)
	}
}

// TestWhatDoesNotSleepIsLeftAlone: who is asked to make room and has work to do isn't asked again at once; another one is.
func TestWhatDoesNotSleepIsLeftAlone(t *testing.T) {
	busy, other := idler(t, "busy", "auto"), idler(t, "other", "auto")
	for _, shim := range []*shimtest.Shim{busy, other} {
		shim.Update(func(_ *shimv1.StatusResponse, a *shimv1.ActivityResponse) {
			a.IdleTimeoutMs, a.MemoryBytes = time.Hour.Milliseconds(), 50<<20
		})
	}
	busy.OnHibernate(func(context.Context) error { return fmt.Errorf("somebody came: %w", errdefs.ErrAborted) })
	var mu sync.Mutex
	var outcomes []string
	k, view := keep(t, keeper.Options{RoomMade: func(outcome string) {
		mu.Lock()
		defer mu.Unlock()
		outcomes = append(outcomes, outcome)
	}}, busy, other)
	eventually(t, "both could sleep", func() bool { return k.Evictable() == 100<<20 })
	eventually(t, "both are asked", func() bool {
		k.MakeRoom(t.Context(), 100<<20)
		return len(busy.Hibernations()) == 1 && len(other.Hibernations()) == 1
	})
	eventually(t, "one sleeps", func() bool {
		return view.Get(node.Key{Namespace: "default", ID: "other"}).State() == "asleep"
	})
	for range 20 {
		k.MakeRoom(t.Context(), 100<<20)
	}
	if got := busy.Hibernations(); len(got) != 1 || got[0].GetReason() != "memory" || got[0].JudgedPackets == nil {
		t.Errorf("the busy one was asked: %v", got)
	}
	mu.Lock()
	defer mu.Unlock()
	slices.Sort(outcomes)
	if !slices.Equal(outcomes, []string{"aborted", "slept"}) {
		t.Errorf("told %v", outcomes)
	}
}
