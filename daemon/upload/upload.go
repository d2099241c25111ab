package upload

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Options of an Uploader. DataDir, Open, URL, Keys and Node are required.
type Options struct {
	DataDir string
	// Open opens the store. It is tried again until it succeeds.
	Open func() (store.Store, error)
	URL  string // of the store, for people and to tell it from another
	Keys durable.Keyring
	Node string // the owner that claims name
	// Keep is how many generations are kept where a workload has not said. Default 3.
	Keep int
	// Rate bounds what is sent, in bytes a second; 0: no bound.
	Rate int64
	// Quota bounds what the generations of one lineage take in the store, in bytes; 0: nothing does.
	Quota int64
	// Concurrent uploads and collections, each of another lineage. Default 2.
	Concurrent int
	// Workers hash and compress for one upload. Default: half of the cores.
	Workers int
	// Grace is the age from which garbage is collected. Default an hour.
	Grace time.Duration
	// ScanEvery is the time between two looks at all of the local tier. Default a minute.
	ScanEvery time.Duration
	// FirstPause and MostPause are between two tries of what failed. Defaults 1 s and 5 min.
	FirstPause, MostPause time.Duration
	// Incarnation, Fence and Shims are for workloads with an identity; without Fence there are none. Relaxed lets the last owner go on
	// while the store is away.
	Incarnation string
	Fence       Fence
	Shims       Shims
	Relaxed     bool
	// Peers are the other nodes' daemons; nil: they aren't asked.
	Peers Peers
	// Room is nil when so many bytes may be put below DataDir; else it says why not. Default: there is room.
	Room func(bytes int64) error
	// releaseWithin bounds the requests of a release, which a Claim may wait for. Default 5 s.
	releaseWithin time.Duration
	Meter         Meter // default: none
	Log           *slog.Logger
}

// Meter takes counts. Its methods are called from many goroutines, and must not wait.
type Meter interface {
	// Uploaded takes an upload that ended: committed, failed, replaced; what was sent, the size of the files, and how long it took.
	Uploaded(outcome string, sent, image int64, took time.Duration)
	// StoreOp takes an operation of the store that ended: ok, absent, condition, refused, unavailable, ended, error.
	StoreOp(op store.Op, result string, bytes int64)
	// Collected takes what a collection has deleted.
	Collected(objects int, bytes int64)
	// Expired takes what delete-after has ended: a sleeper, or the snapshots in the store of a workload that is gone.
	Expired(what string)
	// Claimed takes a request for the right to run a workload with an identity: held, confirmed, new, taken-over, handed-over, unconfirmed; owned,
	// no-store, failed.
	Claimed(result string)
	// Released takes a right that was given up, and Fenced one that another node has taken.
	Released()
	Fenced()
}

func (o Options) withDefaults() Options {
	for field, value := range map[*time.Duration]time.Duration{
		&o.Grace: time.Hour, &o.ScanEvery: time.Minute, &o.FirstPause: time.Second, &o.MostPause: 5 * time.Minute,
		&o.releaseWithin: 5 * time.Second,
	} {
		if *field <= 0 {
			*field = value
		}
	}
	for field, value := range map[*int]int{&o.Keep: 3, &o.Concurrent: 2, &o.Workers: max(1, runtime.GOMAXPROCS(0)/2)} {
		if *field <= 0 {
			*field = value
		}
	}
	if o.Room == nil {
		o.Room = func(int64) error { return nil }
	}
	if o.Meter == nil {
		o.Meter = noMeter{}
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

type noMeter struct{}

func (noMeter) Uploaded(string, int64, int64, time.Duration) {}
func (noMeter) StoreOp(store.Op, string, int64)              {}
func (noMeter) Collected(int, int64)                         {}
func (noMeter) Expired(string)                               {}
func (noMeter) Claimed(string)                               {}
func (noMeter) Released()                                    {}
func (noMeter) Fenced()                                      {}

// Uploader uploads what the local tier has and the store hasn't.
type Uploader struct {
	opts  Options
	place string
	poke  chan struct{} // something is to be looked at

	leftover *leftover

	receiving sync.WaitGroup // what comes from other nodes

	saving sync.Mutex // one record is written at a time; held before mu

	mu        sync.Mutex
	lineages  map[string]*lineage // by name; guarded by mu
	slept     map[node.Key]Wishes // to be looked at; guarded by mu
	running   int                 // guarded by mu
	minding   int                 // claims that are being seen to; guarded by mu
	tiers     map[int]*durable.Tier
	store     store.Store   // nil until it is open
	quick     *durable.Tier // for claims and beats
	condition Condition
	away      int  // operations that failed in a row; guarded by mu
	awayTold  bool // guarded by mu

	ready  chan struct{}   // closed once what earlier daemons have written down is known
	end    context.Context // of all operations
	cancel context.CancelFunc
}

// New returns an uploader that does nothing yet.
func New(o Options) *Uploader {
	u := &Uploader{
		opts: o.withDefaults(), place: place(o.URL), poke: make(chan struct{}, 1),
		lineages: make(map[string]*lineage), slept: make(map[node.Key]Wishes), tiers: make(map[int]*durable.Tier),
	}
	u.leftover = newLeftover()
	u.ready = make(chan struct{})
	u.end, u.cancel = context.WithCancel(context.Background())
	u.condition = Condition{URL: o.URL, Key: o.Keys.Current.ID()}
	return u
}

// Ready is closed once it is known what this node has claimed.
func (u *Uploader) Ready() <-chan struct{} { return u.ready }

// Left says that a workload's shim has gone, perhaps with all that was on the node.
func (u *Uploader) Left(key node.Key) { u.Slept(key, Wishes{}) }

// Slept says that a workload sleeps, and what it wants kept.
func (u *Uploader) Slept(key node.Key, wishes Wishes) {
	u.mu.Lock()
	u.slept[key] = wishes
	u.mu.Unlock()
	u.wake()
}

func (u *Uploader) wake() {
	select {
	case u.poke <- struct{}{}:
	default:
	}
}

// Run uploads until ctx ends, and waits for what is under way, which ends with it, too.
func (u *Uploader) Run(ctx context.Context) {
	var work sync.WaitGroup
	defer u.closeStore()
	defer u.receiving.Wait()
	defer u.cancel()
	defer work.Wait()
	// Never stopped: ctx tells this function before it tells that one, which would then never run.
	_ = context.AfterFunc(ctx, func() { time.AfterFunc(endGrace, u.cancel) })
	u.remember()
	u.clearReceived()
	close(u.ready)
	u.scan()
	work.Go(func() { u.open(ctx) })
	tick := time.NewTicker(u.opts.ScanEvery)
	defer tick.Stop()
	for ctx.Err() == nil {
		due := time.NewTimer(u.start(ctx, &work))
		select {
		case <-tick.C:
			u.scan()
		case <-u.poke:
			u.lookAtSlept()
		case <-due.C:
		case <-ctx.Done():
		}
		due.Stop()
	}
}

// remember takes up what earlier daemons have written down.
func (u *Uploader) remember() {
	all := u.load()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, r := range all {
		l := newLineage(r)
		l.collectAt = time.Now().Add(u.opts.Grace / 2)
		if l.tried = time.Now(); r.Identity != "" {
			l.granted = u.readGrant(r.Name)
		}
		if r.Overtaken != "" {
			l.stopAt = time.Now()
		}
		if r.Received != nil {
			l.takeInAt = time.Now()
		}
		if r.Yielded != nil {
			l.yieldAt = time.Now()
		}
		u.lineages[r.Name] = l
	}
}

// scan looks at all that the local tier has, and at what it no longer has.
func (u *Uploader) scan() {
	dirs, err := snapshot.List(u.opts.DataDir)
	if err != nil {
		u.opts.Log.Warn("snapshots were not looked for", "error", err)
		return
	}
	for _, dir := range dirs {
		u.look(dir, Wishes{})
	}
	u.lookForGone(func(record) bool { return true })
	u.dropUnwanted()
	u.mu.Lock()
	defer u.mu.Unlock()
	for _, l := range u.lineages {
		u.mayRestLocked(l)
	}
}

// mayRestLocked has it be looked whether a workload's claim can be released.
func (u *Uploader) mayRestLocked(l *lineage) {
	if l.record.Identity != "" && l.record.claims() && l.restAt.IsZero() {
		l.restAt = time.Now()
	}
}

// lookForGone looks whether anything is left of lineages on the node, and tells of those of which nothing is any more.
func (u *Uploader) lookForGone(of func(record) bool) {
	var some []record
	u.mu.Lock()
	for _, l := range u.lineages {
		if of(l.record) && l.record.Destroyed.IsZero() && (l.record.Sequence != 0 || l.record.Claim != "") {
			some = append(some, l.record)
		}
	}
	u.mu.Unlock()
	for _, r := range some {
		if here, known := u.isHere(r); known && here != r.Gone.IsZero() {
			u.noteGone(r.Name, !here)
		}
	}
}

// isHere is true when the node has the directory of a lineage. A head that can't be read says nothing.
func (u *Uploader) isHere(r record) (here, known bool) {
	dir := u.dirOf(r)
	head, err := snapshot.ReadHead(dir)
	return err == nil && nameOf(dir, head) == r.Name, err == nil || isNoHead(err)
}

func (u *Uploader) dirOf(r record) string {
	return filepath.Join(u.opts.DataDir, filepath.FromSlash(r.Dir))
}

func (u *Uploader) noteGone(name string, gone bool) {
	u.mu.Lock()
	l := u.lineages[name]
	l.record.Gone = time.Time{}
	if gone {
		l.record.Gone = time.Now().UTC()
		l.local, l.since = 0, time.Time{}
	}
	r := l.record
	u.mu.Unlock()
	log := u.opts.Log.With("workload", r.Namespace+"/"+r.ID, "name", r.Name, "sequence", r.Sequence)
	switch {
	case gone && r.DeleteAfter > 0 && !r.Expired:
		log.Warn("a workload has left the node; its snapshots in the store will be destroyed, unless they are pinned", "in", r.DeleteAfter.String())
	case gone && !r.Expired:
		log.Info("a workload has left the node; its snapshots in the store are kept: see hibernatectl snapshots ls")
	}
	u.saveNow(name)
}

func (u *Uploader) lookAtSlept() {
	u.mu.Lock()
	slept := u.slept
	u.slept = make(map[node.Key]Wishes)
	u.mu.Unlock()
	for key, wishes := range slept {
		u.look(snapshot.DirFor(u.opts.DataDir, key.Namespace, key.ID, wishes.Identity), wishes)
		mine := func(r record) bool { return r.Namespace == key.Namespace && r.ID == key.ID }
		u.lookForGone(mine)
		u.mu.Lock()
		for _, l := range u.lineages {
			if mine(l.record) {
				u.mayRestLocked(l)
			}
		}
		u.mu.Unlock()
	}
}

// start begins what is due, and says when to look again.
func (u *Uploader) start(ctx context.Context, work *sync.WaitGroup) time.Duration {
	u.mu.Lock()
	defer u.mu.Unlock()
	for u.minding < mindAtOnce {
		l, job := u.nextRightLocked(time.Now())
		if l == nil {
			break
		}
		u.minding++
		l.minding = true
		work.Go(func() {
			job(ctx, l)
			u.mu.Lock()
			u.minding--
			l.minding = false
			u.mu.Unlock()
			u.wake()
		})
	}
	for u.store != nil && u.running < u.opts.Concurrent {
		l, job := u.nextLocked(time.Now())
		if l == nil {
			break
		}
		u.running++
		l.busy = true
		run, cancel := context.WithCancelCause(ctx)
		l.cancel = cancel
		work.Go(func() {
			defer cancel(nil)
			job(run, l)
			u.mu.Lock()
			u.running--
			l.busy, l.cancel = false, nil
			u.mu.Unlock()
			u.wake()
		})
	}
	return u.untilNextLocked(time.Now())
}

// mindAtOnce bounds how many claims are confirmed or given up at a time.
const mindAtOnce = 4

// nextRightLocked chooses what is due of claims.
func (u *Uploader) nextRightLocked(now time.Time) (*lineage, func(context.Context, *lineage)) {
	term := u.termNow()
	for _, l := range u.lineages {
		if l.minding {
			continue
		}
		if job := u.rightsDueLocked(l, term, now); job != nil {
			return l, job
		}
	}
	return nil, nil
}

// rightsDueLocked is what is due of a workload with an identity; nil: nothing.
func (u *Uploader) rightsDueLocked(l *lineage, term string, now time.Time) func(context.Context, *lineage) {
	switch {
	case l.record.Identity == "" || u.opts.Fence == nil:
	case !l.stopAt.IsZero() && !l.stopAt.After(now):
		return u.stop
	case !l.takeInAt.IsZero() && !l.takeInAt.After(now):
		return u.takeIn
	case u.store == nil || l.record.Place != u.place:
	case !l.yieldAt.IsZero() && !l.yieldAt.After(now):
		return u.settleYield
	case term != "" && l.unconfirmed(term) && !l.confirmNext.After(now):
		return u.confirm
	case !l.restAt.IsZero() && !l.restAt.After(now) && !l.pending():
		return u.release
	}
	return nil
}

// termNow is the fence's; "": there is no lease, or no fence.
func (u *Uploader) termNow() string {
	if u.opts.Fence == nil {
		return ""
	}
	if term, ok := u.opts.Fence.Term(); ok {
		return term
	}
	return ""
}

// nextLocked chooses the upload that the store has been without for longest, or else a collection.
func (u *Uploader) nextLocked(now time.Time) (best *lineage, job func(context.Context, *lineage)) {
	for _, l := range u.lineages {
		if !l.busy && l.pending() && !l.next.After(now) && !l.heldBack.After(now) && (best == nil || l.since.Before(best.since)) {
			best, job = l, u.upload
		}
	}
	if best != nil {
		return best, job
	}
	for _, l := range u.lineages {
		if !l.busy && l.expired(now) {
			return l, u.expire
		}
	}
	for _, l := range u.lineages {
		if !l.busy && l.record.Claim != "" && !l.collectAt.IsZero() && !l.collectAt.After(now) {
			return l, u.collect
		}
	}
	return nil, nil
}

// untilNextLocked is the time until something is due that isn't now.
func (u *Uploader) untilNextLocked(now time.Time) time.Duration {
	wait := time.Hour
	for _, l := range u.lineages {
		for _, at := range []time.Time{l.stopAt, l.restAt, l.confirmNext, l.takeInAt, l.yieldAt} {
			if !l.minding && l.record.Identity != "" && at.After(now) {
				wait = min(wait, at.Sub(now))
			}
		}
		if l.busy {
			continue
		}
		if at := later(l.next, l.heldBack); l.pending() && at.After(now) {
			wait = min(wait, at.Sub(now))
		}
		if !l.collectAt.IsZero() && l.collectAt.After(now) {
			wait = min(wait, l.collectAt.Sub(now))
		}
		if at := l.deleteAt(); !at.IsZero() && max(at.Sub(now), l.expireNext.Sub(now)) > 0 {
			wait = min(wait, max(at.Sub(now), l.expireNext.Sub(now)))
		}
	}
	return wait
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
