package fence

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/api/rights"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
)

// Options of a Fence. Self, Dir, RunDir and Tier are required.
type Options struct {
	Self   Self   // see LoadSelf
	Dir    string // where that is kept
	RunDir string // where the lease is
	// After is T: silence of so much, and a margin, lets others take over. It should be the same on all nodes; where it isn't, the longer
	// one of two counts. Default 60 s, at least 3 s.
	After time.Duration
	// Tier is the store's, where beats don't wait for uploads; an error as long as it isn't open.
	Tier func() (*durable.Tier, error)
	// Claimed is true while something is claimed: the heart beats only then. Default: never.
	Claimed func() bool
	// Facts are told to other nodes.
	Facts func() map[string]string
	// Changed is called when a term has begun. It must be quick.
	Changed func()
	// Boot and Awake are clocks: one that goes on while the machine is suspended, one that doesn't. Default: the kernel's.
	Boot, Awake func() time.Duration
	Log         *slog.Logger
}

func (o Options) withDefaults() Options {
	if o.After <= 0 {
		o.After = time.Minute
	}
	o.After = max(o.After, durable.LeastTakeOver)
	if o.Claimed == nil {
		o.Claimed = func() bool { return false }
	}
	if o.Facts == nil {
		o.Facts = func() map[string]string { return nil }
	}
	if o.Changed == nil {
		o.Changed = func() {}
	}
	if o.Boot == nil {
		o.Boot = rights.SinceBoot
	}
	if o.Awake == nil {
		o.Awake = sinceBootAwake
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

func sinceBootAwake() time.Duration {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // fails only for clocks that aren't there
	return time.Duration(ts.Nano())
}

// Fence of this node. Safe for concurrent use.
type Fence struct {
	opts Options
	turn chan struct{} // held by who beats
	poke chan struct{}

	// Of who holds turn.
	pulse *durable.Pulse
	tier  *durable.Tier
	rival rival

	mu    sync.Mutex // guards the fields below
	self  Self
	lease rights.Lease // the last
	err   error        // of the last beat
	told  bool         // the log says that there is no lease
	wake  bool         // the lease was wanted since the last beat
	nodes map[string]*place
}

// New makes a fence that does nothing yet, but for taking up the lease of an earlier process.
func New(o Options) *Fence {
	o = o.withDefaults()
	f := &Fence{opts: o, self: o.Self, turn: make(chan struct{}, 1), poke: make(chan struct{}, 1), nodes: make(map[string]*place)}
	f.resume()
	return f
}

// resume takes up a lease that still lasts: then the term does, too. One that lasts longer than this node's takeover-after allows is
// shortened, before any beat says so to others.
func (f *Fence) resume() {
	l, err := rights.ReadLease(f.opts.RunDir)
	if err != nil || l.Node != f.self.Node || f.self.Term == "" {
		return
	}
	now := f.opts.Boot()
	most := f.leaseFrom(now)
	if most.Sleep < l.Sleep || most.End < l.End {
		l.Sleep, l.End = min(l.Sleep, most.Sleep), min(l.End, most.End)
		if err := rights.WriteLease(f.opts.RunDir, l); err != nil {
			f.opts.Log.Error("the node's lease could not be shortened: it counts as over here, and shims may go on for longer than other nodes think", "error", err)
			return
		}
	}
	if now < l.End {
		f.lease = l
	}
}

// leaseFrom is what a beat gives that was begun at a time.
func (f *Fence) leaseFrom(begun time.Duration) rights.Lease {
	t := f.opts.After
	return rights.Lease{Node: f.self.Node, Sleep: begun + t/2, End: begun + t - t/6}
}

// every is the time between two beats.
func (f *Fence) every() time.Duration { return f.opts.After / 6 }

// Run beats while something is claimed, and watches the other nodes, until ctx ends.
func (f *Fence) Run(ctx context.Context) {
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { f.watch(ctx) })
	for ctx.Err() == nil {
		wait := f.every()
		if f.wanted() {
			begun := f.opts.Boot()
			if err := f.beat(ctx, true); err != nil {
				wait = f.opts.After / 30
			} else {
				wait = max(0, wait-(f.opts.Boot()-begun))
			}
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-f.poke:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// wanted is true while the lease must be renewed. One that was asked for lasts for a while also when nothing is claimed yet.
func (f *Fence) wanted() bool {
	f.mu.Lock()
	wake := f.wake
	f.wake = false
	f.mu.Unlock()
	return f.opts.Claimed() || wake
}

// ErrLapsed: the node has no lease, and so may run nothing that it has claimed.
var ErrLapsed = errors.New("this node has no lease: the store has not confirmed for too long that it lives")

// Term is the present one; ok is false when there is no lease that lets something begin to run.
func (f *Fence) Term() (term string, ok bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.self.Term, f.self.Term != "" && f.opts.Boot() < f.lease.Sleep
}

// Left is how long the lease still lasts until workloads are put to sleep; 0: there is none.
func (f *Fence) Left() time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	return max(0, f.lease.Sleep-f.opts.Boot())
}

// Need has the heart beat, if there is no lease, and gives the term. It makes one try, and says why there is none.
func (f *Fence) Need(ctx context.Context) (string, error) {
	f.mu.Lock()
	f.wake = true
	f.mu.Unlock()
	if term, ok := f.Term(); ok {
		return term, nil
	}
	if err := f.beat(ctx, false); err != nil {
		return "", fmt.Errorf("%w: %w", ErrLapsed, err)
	}
	select {
	case f.poke <- struct{}{}:
	default:
	}
	if term, ok := f.Term(); ok {
		return term, nil
	}
	return "", fmt.Errorf("%w: the store was too slow to confirm it", ErrLapsed)
}

// beat makes one. Without again none is made where another call has just made one that holds.
func (f *Fence) beat(ctx context.Context, again bool) error {
	ctx, cancel := context.WithTimeout(ctx, f.every())
	defer cancel()
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, ok := f.Term(); ok && !again {
		return nil
	}
	err := f.beatOnce(ctx)
	f.tell(ctx, err)
	return err
}

func (f *Fence) beatOnce(ctx context.Context) error {
	tier, err := f.opts.Tier()
	if err != nil {
		return err
	}
	if tier != f.tier {
		f.tier, f.pulse = tier, tier.Pulse(f.opts.Self.Incarnation, f.opts.After)
	}
	begun, facts := f.opts.Boot(), f.opts.Facts()
	looked := f.opts.Awake()
	err = f.pulse.Beat(ctx, facts)
	if taken, ok := errors.AsType[*durable.NodeTakenError](err); ok {
		if !f.rival.silent(taken, looked, f.opts.Awake(), f.opts.After) {
			if f.rival.lives {
				err = fmt.Errorf("%w: %w", ErrRival, err)
			}
			return err
		}
		begun = f.opts.Boot()
		err = f.pulse.Displace(ctx, taken, facts)
	}
	if err != nil {
		return err
	}
	f.rival = rival{}
	return f.confirmed(begun)
}

// confirmed renews the lease. A new term is written down before the lease that it begins with.
func (f *Fence) confirmed(begun time.Duration) error {
	f.mu.Lock()
	self, over := f.self, f.self.Term == "" || f.opts.Boot() >= f.lease.End
	f.mu.Unlock()
	if over {
		self.Term = durable.NewIncarnation()
		if err := self.save(f.opts.Dir); err != nil {
			return err
		}
	}
	lease := f.leaseFrom(begun)
	if err := rights.WriteLease(f.opts.RunDir, lease); err != nil {
		return err
	}
	f.mu.Lock()
	f.self, f.lease = self, lease
	f.mu.Unlock()
	if over {
		f.opts.Changed()
	}
	return nil
}

// rival is who else has this node's name.
type rival struct {
	nonce string
	since time.Duration // when that was seen first
	lives bool          // it has told so while this node looked
}

// ErrRival: another machine that has this node's name lives. A person must give one of them another.
var ErrRival = errors.New("another machine that has this node's name lives")

// silent is true when the rival was silent for long enough. looked and now are before and after the look.
func (r *rival) silent(e *durable.NodeTakenError, looked, now, after time.Duration) bool {
	if r.nonce != e.There.Nonce {
		*r = rival{e.There.Nonce, now, r.nonce != ""}
		return false
	}
	return looked-r.since >= enough(max(after, e.There.TakeOver))
}

// enough silence to be dead.
func enough(after time.Duration) time.Duration { return after + after/6 }

// tell logs when there is no lease any more, and when there is one again.
func (f *Fence) tell(ctx context.Context, err error) {
	if err != nil && ctx.Err() != nil && !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return
	}
	f.mu.Lock()
	f.err = err
	now := f.opts.Boot()
	gone, told := err != nil && now >= f.lease.Sleep, f.told
	f.told = gone
	f.mu.Unlock()
	log := f.opts.Log.With("node", f.self.Node)
	switch {
	case errors.Is(err, durable.ErrNodeTaken) && gone && !told:
		log.Error("another machine has this node's name in the store, or had until a moment ago: workloads with an identity don't run here meanwhile", "error", err)
	case gone && !told:
		log.Error("the store doesn't confirm that this node lives: workloads with an identity are put to sleep until it does", "error", err)
	case told && !gone:
		log.Info("the store confirms again that this node lives")
	}
}

// Err says why the last beat was not confirmed; nil: it was.
func (f *Fence) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.err
}
