package upload

import (
	"context"
	"errors"
	"net/url"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Fences says whether a store's conditional writes can be relied on.
type Fences string

// What Probe has found.
const (
	FencesUnknown Fences = "unknown" // it could not be found out yet
	FencesYes     Fences = "yes"
	FencesNo      Fences = "no"
)

// Condition is what is known of the store.
type Condition struct {
	URL    string
	Key    string // id of the key that new lineages are wrapped with
	Fences Fences
	Why    string        // when it doesn't
	Skew   time.Duration // the store's clock is ahead of ours by so much
	Err    error         // why it can't be used, as of the last operation that told; nil: it can
}

// Text is the condition for a person.
func (c Condition) Text() string {
	switch {
	case c.Fences == FencesNo:
		return "does not fence: " + c.Why
	case c.Fences == FencesYes && c.Err == nil:
		return "fences"
	case c.Err != nil:
		return "can't be used: " + c.Err.Error()
	}
	return "is being tried"
}

// place tells a store from another one, whatever else its URL has.
func place(raw string) string {
	u, err := url.Parse(raw)
	if err != nil {
		return raw
	}
	return u.Scheme + "://" + u.Host + u.Path + "?endpoint=" + u.Query().Get("endpoint")
}

// Condition of the store now.
func (u *Uploader) Condition() Condition {
	u.mu.Lock()
	defer u.mu.Unlock()
	c := u.condition
	if c.Fences == "" {
		c.Fences = FencesUnknown
	}
	return c
}

// open opens the store, and finds out whether it fences.
func (u *Uploader) open(ctx context.Context) {
	log := u.opts.Log.With("store", u.opts.URL)
	for failures := 1; ; failures++ {
		err := u.tryOpen()
		if err == nil {
			break
		}
		u.used(err)
		if !pause(ctx, u.pauseAfter(failures)) {
			return
		}
	}
	u.wake()
	for failures := 1; ; failures++ {
		report, err := store.Probe(ctx, u.store, "")
		if err == nil {
			u.probed(report)
			u.tellOlder(ctx)
			return
		}
		if failures == 1 && ctx.Err() == nil {
			log.Warn("whether the store fences could not be found out: it is tried again", "error", err)
		}
		if !pause(ctx, u.pauseAfter(failures)) {
			return
		}
	}
}

func (u *Uploader) tryOpen() error {
	s, err := u.opts.Open()
	if err != nil {
		return err
	}
	s = store.Observed(s, u.observe)
	quick, err := u.quickTier(s)
	if err != nil {
		return err
	}
	s = store.Limited(s, store.Limits{Writes: 2 * u.opts.Concurrent, Reads: 32, Upload: u.opts.Rate})
	s = store.Retried(s, store.Patience{})
	s = ending{s, u.end}
	s = store.Observed(s, func(store.Op) func(int64, error) { return func(_ int64, err error) { u.used(err) } })
	u.mu.Lock()
	defer u.mu.Unlock()
	u.store, u.quick = s, quick
	return nil
}

// quickTier is for what can't wait for uploads, and is asked for again by who waits.
func (u *Uploader) quickTier(s store.Store) (*durable.Tier, error) {
	s = store.Retried(s, store.Patience{Tries: 2, First: 100 * time.Millisecond})
	s = ending{s, u.end}
	s = store.Observed(s, func(store.Op) func(int64, error) { return func(_ int64, err error) { u.used(err) } })
	return durable.New(durable.Config{Store: s, Keys: u.opts.Keys, Node: u.opts.Node, Incarnation: u.opts.Incarnation, Workers: 1})
}

// endGrace is how long operations go on after Run's context has ended: those that tidy up, mostly.
const endGrace = 2 * time.Second

// ending ends all operations with a context of its own, too: what tidies up does so also when its caller has ended, but the daemon
// doesn't wait for a store that hangs.
type ending struct {
	store.Store
	end context.Context
}

func (e ending) both(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(e.end, cancel)
	return ctx, func() { stop(); cancel() }
}

func (e ending) Put(ctx context.Context, name string, body []byte, cond store.Condition) (store.Version, error) {
	ctx, done := e.both(ctx)
	defer done()
	return e.Store.Put(ctx, name, body, cond)
}

func (e ending) Get(ctx context.Context, name string, limit int64) ([]byte, store.Info, error) {
	ctx, done := e.both(ctx)
	defer done()
	return e.Store.Get(ctx, name, limit)
}

func (e ending) GetRange(ctx context.Context, name string, offset, length int64) ([]byte, error) {
	ctx, done := e.both(ctx)
	defer done()
	return e.Store.GetRange(ctx, name, offset, length)
}

func (e ending) Stat(ctx context.Context, name string) (store.Info, error) {
	ctx, done := e.both(ctx)
	defer done()
	return e.Store.Stat(ctx, name)
}

func (e ending) List(ctx context.Context, prefix string) ([]store.Info, time.Time, error) {
	ctx, done := e.both(ctx)
	defer done()
	return e.Store.List(ctx, prefix)
}

func (e ending) Delete(ctx context.Context, name string) error {
	ctx, done := e.both(ctx)
	defer done()
	return e.Store.Delete(ctx, name)
}

func (u *Uploader) closeStore() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.store != nil {
		_ = u.store.Close()
		u.store, u.quick = nil, nil
	}
}

func (u *Uploader) probed(r store.Report) {
	u.mu.Lock()
	u.condition.Skew, u.condition.Why, u.condition.Fences = r.Skew, r.Why, FencesNo
	if r.Honest {
		u.condition.Fences = FencesYes
	}
	u.mu.Unlock()
	log := u.opts.Log.With("store", u.opts.URL, "fences", r.Honest)
	if r.Honest {
		log.Info("the store is open")
	} else {
		log.Error("the store does not fence: snapshots are kept there, but it can't keep two nodes from running one workload", "reason", r.Why)
	}
	if r.Skew != 0 {
		log.Warn("this machine's clock differs from the store's: S3 refuses requests from a quarter of an hour on", "store_ahead", r.Skew.String())
	}
}

// observe counts an operation.
func (u *Uploader) observe(op store.Op) func(int64, error) {
	return func(bytes int64, err error) { u.opts.Meter.StoreOp(op, resultOf(err), bytes) }
}

func resultOf(err error) string {
	for _, k := range []struct {
		err  error
		name string
	}{
		{store.ErrNotFound, "absent"}, {store.ErrExists, "condition"}, {store.ErrChanged, "condition"}, {store.ErrRefused, "refused"},
		{store.ErrUnavailable, "unavailable"}, {context.Canceled, "ended"}, {context.DeadlineExceeded, "ended"},
	} {
		if errors.Is(err, k.err) {
			return k.name
		}
	}
	if err != nil {
		return "error"
	}
	return "ok"
}

// used takes the result of an operation: one line in the log when the store can't be used any more, one when it can again.
func (u *Uploader) used(err error) {
	result := resultOf(err)
	if result == "ended" || result == "error" {
		if u.isOpen() {
			return
		}
	}
	bad := result == "refused" || result == "unavailable" || err != nil && !u.isOpen()
	u.mu.Lock()
	u.condition.Err = nil
	told := u.awayTold
	if bad {
		u.condition.Err = err
		u.away++
	} else {
		u.away = 0
	}
	u.awayTold = bad && (told || u.away >= awayLogged)
	now := u.awayTold
	u.mu.Unlock()
	log := u.opts.Log.With("store", u.opts.URL)
	switch {
	case now && !told:
		log.Error("the store can't be used: snapshots stay on this node until it can", "error", err)
	case told && !now:
		log.Info("the store can be used again")
	}
}

// awayLogged is how many operations must fail in a row, each after its own tries, before the log says so.
const awayLogged = 2

func (u *Uploader) isOpen() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.store != nil
}

// pause waits, and reports whether ctx goes on.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}
