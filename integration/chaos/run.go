package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Result of a run.
type Result struct {
	Lost    []string // what was committed and isn't there, or isn't whole; a state of the workload that can't be
	Orphans []string // objects that nothing needs, after a collection
	Actions []string
}

// Failed says whether anything is wrong.
func (r Result) Failed() bool { return len(r.Lost)+len(r.Orphans) > 0 }

// String tells a run, for a person.
func (r Result) String() string {
	return fmt.Sprintf("lost: %q\norphans: %q\nactions: %s", r.Lost, r.Orphans, strings.Join(r.Actions, ", "))
}

// run is one.
type run struct {
	*Field
	r   *rand.Rand
	out Result

	unsure bool           // the counter may be one more than was answered
	fresh  bool           // the workload may begin anew: its shim died while it was not asleep
	doing  sync.WaitGroup // what goes on beside the next actions
}

// Run does random actions, and looks. An error says that it could not be done to its end.
func (f *Field) Run(ctx context.Context, seed uint64) (Result, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*limit)
	defer cancel()
	r := &run{Field: f, r: rand.New(rand.NewPCG(seed, 7))}
	if err := f.cutLog(); err != nil {
		return r.out, err
	}
	stop := r.collectAlways(ctx)
	for range 5 + r.r.IntN(5) {
		if err := r.act(ctx); err != nil {
			stop()
			r.doing.Wait()
			return r.out, fmt.Errorf("%s: %w", r.out.Actions[len(r.out.Actions)-1], err)
		}
		r.pause(ctx, 120*time.Millisecond)
	}
	r.doing.Wait()
	stop()
	err := r.mend(ctx)
	if err == nil {
		err = r.look(ctx)
	}
	return r.out, err
}

func (r *run) did(format string, args ...any) {
	r.out.Actions = append(r.out.Actions, fmt.Sprintf(format, args...))
}

func (r *run) lost(format string, args ...any) {
	r.out.Lost = append(r.out.Lost, fmt.Sprintf(format, args...))
}

// pause waits for up to most.
func (r *run) pause(ctx context.Context, most time.Duration) {
	select {
	case <-time.After(time.Duration(r.r.Int64N(int64(most)))):
	case <-ctx.Done():
	}
}

// act does one random thing.
func (r *run) act(ctx context.Context) error {
	switch n := r.r.IntN(100); {
	case n < 30:
		r.did("sleep")
		r.sleep(ctx)
	case n < 45:
		r.did("count")
		r.count(ctx)
	case n < 65:
		return r.toggleDaemon(ctx)
	case n < 85:
		return r.toggleServer()
	default:
		return r.dieShim(ctx)
	}
	return nil
}

// sleep goes on beside the next actions, as they come in the middle of it.
func (r *run) sleep(ctx context.Context) {
	r.doing.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		_, _ = r.World.Hibernate(ctx, id) // whatever comes of it
	})
}

// count has the workload count, which wakes it.
func (r *run) count(ctx context.Context) {
	v, err := r.call(ctx, http.MethodPost)
	switch {
	case err != nil:
		r.unsure = true
	case v == r.value+1 || r.unsure && v == r.value+2 || r.fresh && v == 1:
		r.value, r.unsure, r.fresh = v, false, false
	default:
		r.lost("the counter is %d after %d (unsure %t, fresh %t)", v, r.value, r.unsure, r.fresh)
		r.value = v
	}
}

func (r *run) toggleDaemon(ctx context.Context) error {
	if r.World.Daemon.Pid() != 0 {
		r.did("kill daemon")
		return r.World.Daemon.Kill()
	}
	r.did("start daemon")
	return r.World.Daemon.Start(ctx)
}

func (r *run) toggleServer() error {
	if r.running {
		r.did("kill store")
		r.Server.Kill()
		r.running = false
		return nil
	}
	r.did("start store")
	r.running = true
	return r.Server.Start()
}

// dieShim kills the shim; what it was in the middle of ends with it. Only what surely slept must be there again.
func (r *run) dieShim(ctx context.Context) error {
	r.did("kill shim")
	asleep := r.state(ctx) == "asleep"
	if err := r.killShim(ctx); err != nil {
		return err
	}
	r.doing.Wait() // what it was asked ends with it
	if !asleep {
		r.fresh = true
	}
	return r.create(ctx)
}

// collectAlways has a collector run that takes nothing for young, until stop is called.
func (r *run) collectAlways(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			_ = r.collectAll(ctx, func(string, durable.Collection) {})
			r.shortly(ctx)
		}
	})
	return func() { cancel(); running.Wait() }
}

// shortly is a pause that takes no random number of the run's.
func (r *run) shortly(ctx context.Context) {
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
	}
}

func (f *Field) collectAll(ctx context.Context, tell func(string, durable.Collection)) error {
	t, err := f.tier()
	if err != nil {
		return err
	}
	names, err := t.Names(ctx)
	for _, name := range names {
		l, lerr := t.Lineage(name)
		if lerr == nil {
			var c durable.Collection
			if c, lerr = l.Collect(ctx, durable.CollectOptions{}); lerr == nil {
				tell(name, c)
			}
		}
		if !errors.Is(lerr, durable.ErrNone) {
			err = errors.Join(err, lerr)
		}
	}
	return err
}

// mend has everything run again.
func (r *run) mend(ctx context.Context) error {
	if !r.running {
		if err := r.Server.Start(); err != nil {
			return err
		}
		r.running = true
	}
	if r.World.Daemon.Pid() == 0 {
		return r.World.Daemon.Start(ctx)
	}
	return nil
}

// look compares what is there with what must be.
func (r *run) look(ctx context.Context) error {
	if err := r.same(ctx, "after all"); err != nil {
		return err
	}
	for _, from := range []string{"from the node", "from the store"} {
		if _, err := r.World.Sleep(ctx, id); err != nil {
			return err
		}
		if err := r.uploaded(ctx); err != nil {
			return err
		}
		if from == "from the store" {
			if err := r.forgetLocal(); err != nil {
				return err
			}
		}
		if err := r.same(ctx, from); err != nil {
			return err
		}
	}
	return r.inspect(ctx)
}

// same asks the workload whether it is what it was, which wakes it.
func (r *run) same(ctx context.Context, when string) error {
	asking, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v, err := r.call(asking, http.MethodGet)
	switch {
	case err != nil:
		r.lost("%s the workload doesn't answer: %v", when, err)
		return nil
	case v == r.value, r.unsure && v == r.value+1, r.fresh && v == 0, r.fresh && r.unsure && v == 1:
	default:
		r.lost("%s the counter is %d, not %d (unsure %t, fresh %t)", when, v, r.value, r.unsure, r.fresh)
	}
	r.value, r.unsure, r.fresh = v, false, false
	return nil
}

// uploaded waits until the store has what the node has.
func (r *run) uploaded(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*limit)
	defer cancel()
	for {
		n, err := r.sequence()
		if err != nil {
			return err
		}
		all, err := r.committed()
		if err != nil {
			return err
		}
		for name, c := range all {
			if c >= n && strings.HasSuffix(name, r.lineage()) {
				return nil
			}
		}
		if there, err := r.has(ctx, n); err == nil && there { // committed by a daemon that died before it could say so
			return nil
		}
		select {
		case <-ctx.Done():
			r.lost("snapshot %d doesn't come to the store: %s", n, r.World.Daemon.LogTail(1500))
			return nil
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// has says whether a lineage in the store has a sequence as its newest, that of the directory that the node has.
func (r *run) has(ctx context.Context, sequence uint64) (bool, error) {
	t, err := r.tier()
	if err != nil {
		return false, err
	}
	names, err := t.Names(ctx)
	for _, name := range names {
		l, lerr := t.Lineage(name)
		if lerr != nil {
			return false, lerr
		}
		h, lerr := l.Head(ctx)
		if g, ok := h.Newest(); lerr == nil && ok && g.Sequence == sequence && h.Owner != nil && strings.HasSuffix(name, r.lineage()) {
			return true, nil
		}
	}
	return false, err
}

// inspect reads all that the store has, and collects.
func (r *run) inspect(ctx context.Context) error {
	told, err := r.committed()
	if err != nil {
		return err
	}
	t, err := r.tier()
	if err != nil {
		return err
	}
	names, err := t.Names(ctx)
	if err != nil {
		return err
	}
	for name := range told {
		if !slices.Contains(names, name) {
			r.lost("%s is not there at all", name)
		}
	}
	for _, name := range names {
		if _, of := told[name]; !of && !strings.HasSuffix(name, r.lineage()) {
			continue // an earlier run's
		}
		l, err := t.Lineage(name)
		if err != nil {
			return err
		}
		h, err := l.Head(ctx)
		if err != nil {
			r.lost("%s: %v", name, err)
			continue
		}
		if g, _ := h.Newest(); g.Sequence < told[name] {
			r.lost("%s has come to %d, and %d was committed", name, g.Sequence, told[name])
		}
		for _, g := range h.Generations {
			if err := verify(ctx, l, g.Sequence); err != nil {
				r.lost("%s@%d: %v", name, g.Sequence, err)
			}
		}
	}
	return r.orphans(ctx)
}

func verify(ctx context.Context, l *durable.Lineage, sequence uint64) error {
	reader, err := l.Open(ctx, sequence, durable.OpenOptions{})
	if err != nil {
		return err
	}
	defer reader.Close()
	return reader.Verify(ctx, nil)
}

// orphans collects twice, once what is there now is old: what the second collection finds of that is one. What was written
// only just before, or is meanwhile, as the lease of who still reads or uploads, may be too young for the first by the clock
// of a server that has little of a processor, and not for the second.
func (r *run) orphans(ctx context.Context) error {
	old := time.Now().Add(-3 * time.Second).Truncate(time.Second)
	select {
	case <-time.After(2100 * time.Millisecond): // the store's times are whole seconds
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := r.collectAll(ctx, func(string, durable.Collection) {}); err != nil {
		return fmt.Errorf("collect: %w", err)
	}
	return r.collectAll(ctx, func(name string, c durable.Collection) {
		for _, g := range c.Deleted {
			if !g.Modified.After(old) {
				r.out.Orphans = append(r.out.Orphans, fmt.Sprintf("%s/%s of %s, before %s", name, g.Name, g.Modified, old))
			}
		}
		r.out.Orphans = append(r.out.Orphans, c.Unknown...)
	})
}
