package cgroup

import (
	"fmt"
	"sync"
	"time"

	"github.com/containerd/typeurl/v2"
)

// A reading is told for freshFor to whoever asks again. From renewAfter on the
// next is read beside, so that who asks all the time never waits for one: a
// group has some fifty files, which on a busy machine take their time.
const (
	freshFor   = 50 * time.Millisecond
	renewAfter = freshFor / 2
)

// recent is the newest reading of a group's counters.
type recent struct {
	renewing sync.WaitGroup

	mu      sync.Mutex // guards the below
	metrics typeurl.Any
	at      time.Time // when the reading began
	epoch   int       // counts what has made readings stale
	renews  bool
	gone    bool // nothing is read beside any more
}

// Metrics are the counters of the group, of the type that containerd expects on
// this host: io.containerd.cgroups.v1.Metrics or v2. They are as they were at
// most 50 ms ago, and after an Update.
func (g *Group) Metrics() (typeurl.Any, error) {
	r := &g.recent
	r.mu.Lock()
	defer r.mu.Unlock()
	age := time.Since(r.at)
	if r.metrics == nil || age >= freshFor {
		r.mu.Unlock()
		defer r.mu.Lock()
		return g.readMetrics()
	}
	if age >= renewAfter && !r.renews && !r.gone {
		r.renews = true
		r.renewing.Go(func() {
			_, _ = g.readMetrics() // whoever asks when these are too old is told of an error
			r.mu.Lock()
			defer r.mu.Unlock()
			r.renews = false
		})
	}
	return r.metrics, nil
}

func (g *Group) readMetrics() (typeurl.Any, error) {
	r := &g.recent
	r.mu.Lock()
	epoch, at := r.epoch, time.Now()
	r.mu.Unlock()
	m, err := g.metrics()
	if err != nil {
		return nil, fmt.Errorf("metrics of control group %s: %w", g.path, err)
	}
	reading, err := typeurl.MarshalAny(m)
	if err != nil {
		return nil, fmt.Errorf("metrics of control group %s: %w", g.path, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if epoch == r.epoch && at.After(r.at) {
		r.metrics, r.at = reading, at
	}
	return reading, nil
}

// stale has the next Metrics read anew.
func (r *recent) stale() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.metrics = nil
	r.epoch++
}

// end is stale, and waits for what is read beside.
func (r *recent) end() {
	r.stale()
	r.mu.Lock()
	r.gone = true
	r.mu.Unlock()
	r.renewing.Wait()
}
