package node_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// records are what a scan finds, and roles count who lives.
type records struct {
	mu    sync.Mutex
	found []node.Found
	err   error
	alive map[string]int
	gone  int
}

func (r *records) set(err error, found ...node.Found) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.found, r.err = found, err
}

func (r *records) scan() ([]node.Found, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.found, r.err
}

func (r *records) role(ctx context.Context, w *node.Workload) {
	r.count(w, 1)
	<-ctx.Done()
	r.count(w, -1)
}

func (r *records) count(w *node.Workload, by int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.alive[w.Address] += by
}

func (r *records) living(address string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.alive[address]
}

func open(t *testing.T, r *records) *node.View {
	r.alive = make(map[string]int)
	v := node.Open(node.Options{
		Dial: func(address string) node.Shim { return shimclient.New(address) },
		Scan: r.scan, ScanEvery: 5 * time.Millisecond, Roles: []func(context.Context, *node.Workload){r.role},
		OnGone: func(*node.Workload) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.gone++
		},
	})
	t.Cleanup(v.Close)
	return v
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

var redis = node.Key{Namespace: "default", ID: "redis"}

func TestRecordsComeAndGo(t *testing.T) {
	shim := shimtest.Start(t, redis.Namespace, redis.ID)
	var r records
	r.set(nil, node.Found{Key: redis, Address: shim.Address})
	v := open(t, &r)
	if v.Get(redis) == nil {
		t.Fatal("the first scan is done before Open returns")
	}
	eventually(t, "its state is known", func() bool { return v.Get(redis).State() == "awake" && v.Get(redis).Watched() })
	r.set(nil)
	eventually(t, "it leaves", func() bool { return v.Get(redis) == nil && r.living(shim.Address) == 0 })
}

func TestFailedScanDropsNobody(t *testing.T) {
	shim := shimtest.Start(t, redis.Namespace, redis.ID)
	var r records
	r.set(nil, node.Found{Key: redis, Address: shim.Address})
	v := open(t, &r)
	first := v.Get(redis)
	r.set(errors.New("too many open files"))
	other := node.Key{Namespace: "default", ID: "other"}
	_, release := v.Register(other, shim.Address)
	defer release()
	eventually(t, "scans went on", func() bool { return r.living(shim.Address) == 2 })
	if v.Get(redis) != first {
		t.Error("dropped by a scan that failed")
	}
}

func TestRegistrationOutlivesTheRecord(t *testing.T) {
	shim := shimtest.Start(t, redis.Namespace, redis.ID)
	var r records
	r.set(nil, node.Found{Key: redis, Address: shim.Address})
	v := open(t, &r)
	w, release := v.Register(redis, shim.Address)
	if w != v.Get(redis) || len(v.List()) != 1 {
		t.Fatal("a registration at the known address is the same workload")
	}
	r.set(nil, node.Found{Key: node.Key{Namespace: "a", ID: "b"}, Address: "unix:///nowhere"})
	eventually(t, "the scan was made", func() bool { return len(v.List()) == 2 })
	if v.Get(redis) != w {
		t.Error("left with its record")
	}
	release()
	release() // twice is once
	if v.Get(redis) != nil {
		t.Error("stays after all vouchers are gone")
	}
}

func TestNewAddressIsANewShim(t *testing.T) {
	old, young := shimtest.Start(t, redis.Namespace, redis.ID), shimtest.Start(t, redis.Namespace, redis.ID)
	var r records
	r.set(nil, node.Found{Key: redis, Address: old.Address})
	v := open(t, &r)
	before, releaseOld := v.Register(redis, old.Address)
	after, release := v.Register(redis, young.Address)
	defer release()
	if before == after || v.Get(redis) != after {
		t.Fatal("the new shim does not replace the old one")
	}
	releaseOld()
	eventually(t, "the old one's roles end", func() bool { return r.living(old.Address) == 0 && r.living(young.Address) == 1 })
	if v.Get(redis) != after {
		t.Error("the old registration's end took the new one along")
	}
}

func TestRecordOfANewAddressReplacesARecord(t *testing.T) {
	var r records
	r.set(nil, node.Found{Key: redis, Address: "unix:///one"})
	v := open(t, &r)
	r.set(nil, node.Found{Key: redis, Address: "unix:///two"})
	eventually(t, "it is replaced", func() bool { return v.Get(redis).Address == "unix:///two" && r.living("unix:///one") == 0 })
}

func TestWatchComesBack(t *testing.T) {
	shim := shimtest.Start(t, redis.Namespace, redis.ID)
	var r records
	v := open(t, &r)
	w, release := v.Register(redis, shim.Address)
	defer release()
	eventually(t, "it is watched", w.Watched)
	changed := w.Changed()
	shim.State("asleep")
	select {
	case <-changed:
	case <-time.After(5 * time.Second):
		t.Fatal("the change was not told")
	}
	if w.State() != "asleep" {
		t.Errorf("state %s", w.State())
	}
	shim.Stop()
	eventually(t, "the loss is told", func() bool { return !w.Watched() && w.Err() != nil })
	if w.State() != "asleep" {
		t.Error("the last known state is forgotten")
	}
}

func TestClosedViewTakesNobody(t *testing.T) {
	var r records
	r.set(nil, node.Found{Key: redis, Address: "unix:///one"})
	v := open(t, &r)
	v.Close()
	if w, _ := v.Register(redis, "unix:///one"); w != nil || len(v.List()) != 0 {
		t.Error("still takes registrations")
	}
	if r.gone != 1 {
		t.Errorf("%d workloads were told to be gone", r.gone)
	}
}

func TestKeysInOrder(t *testing.T) {
	var r records
	var found []node.Found
	for _, key := range []node.Key{{Namespace: "b", ID: "a"}, {Namespace: "a", ID: "z"}, {Namespace: "a", ID: "b"}} {
		found = append(found, node.Found{Key: key, Address: "unix:///nowhere"})
	}
	r.set(nil, found...)
	var got string
	for _, w := range open(t, &r).List() {
		got += w.Key.String() + " "
	}
	if got != "a/b a/z b/a " {
		t.Errorf("got %s", got)
	}
}
