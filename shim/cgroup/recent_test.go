package cgroup

import (
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	stats1 "github.com/containerd/cgroups/v3/cgroup1/stats"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// read is a driver that counts how often it was read, and tells the number.
type read struct {
	driver
	times atomic.Uint64
	err   error
}

func (r *read) dirs() []string                     { return nil }
func (r *read) update(*specs.LinuxResources) error { return nil }
func (r *read) metrics() (any, error) {
	return &stats1.Metrics{Pids: &stats1.PidsStat{Current: r.times.Add(1)}}, r.err
}

func reading(t *testing.T, g *Group) uint64 {
	t.Helper()
	m, err := g.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	v, err := typeurl.UnmarshalAny(m)
	if err != nil {
		t.Fatal(err)
	}
	return v.(*stats1.Metrics).Pids.Current
}

func want(t *testing.T, g *Group, n uint64, when string) {
	t.Helper()
	if got := reading(t, g); got != n {
		t.Errorf("%s: reading %d is told, want %d", when, got, n)
	}
}

func TestMetricsOfAMomentAgoAreToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &read{}
		g := &Group{driver: d}
		want(t, g, 1, "first")
		want(t, g, 1, "at once again")
		time.Sleep(renewAfter)
		want(t, g, 1, "while the next is read")
		synctest.Wait()
		want(t, g, 2, "when it was read")
		time.Sleep(freshFor)
		want(t, g, 3, "when nobody has asked for a while")
		if err := g.Update(&specs.LinuxResources{}); err != nil {
			t.Fatal(err)
		}
		want(t, g, 4, "after a change of limits")
		if err := g.Delete(); err != nil {
			t.Fatal(err)
		}
		want(t, g, 5, "after the group's end")
	})
}

func TestAReadingThatFailedIsNotToldAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &read{err: errors.New("no")}
		g := &Group{driver: d}
		if _, err := g.Metrics(); !errors.Is(err, d.err) {
			t.Fatalf("error %v", err)
		}
		d.err = nil
		want(t, g, 2, "after the failure")
		time.Sleep(freshFor)
		d.err = errors.New("gone")
		if _, err := g.Metrics(); !errors.Is(err, d.err) {
			t.Errorf("error %v; an old reading hides it", err)
		}
	})
}
