package upload

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	api "github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/api/rights"
	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// late is a way to a store on which writes may arrive long after their caller has given up.
type late struct {
	store.Store
	delay func(op memstore.Op) time.Duration
	all   *sync.WaitGroup
}

func (l late) Put(ctx context.Context, name string, body []byte, cond store.Condition) (v store.Version, err error) {
	d := l.delay(memstore.Put)
	if d == 0 {
		return l.Store.Put(ctx, name, body, cond)
	}
	done := make(chan struct{})
	body = append([]byte(nil), body...)
	l.all.Go(func() {
		time.Sleep(d)
		v, err = l.Store.Put(context.Background(), name, body, cond)
		close(done)
	})
	select {
	case <-done:
		return v, err
	case <-ctx.Done():
		return "", fmt.Errorf("put %s: %w", name, ctx.Err())
	}
}

func (l late) Get(ctx context.Context, name string, limit int64) ([]byte, store.Info, error) {
	if d := l.delay(memstore.Get); d != 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return nil, store.Info{}, fmt.Errorf("get %s: %w", name, ctx.Err())
		}
	}
	return l.Store.Get(ctx, name, limit)
}

// arena has nodes with real fences, shims that behave as the real ones, and a witness of who runs.
type arena struct {
	t        *testing.T
	bucket   *memstore.Bucket
	takeOver time.Duration
	begin    time.Time
	writes   sync.WaitGroup // that are late

	mu      sync.Mutex
	r       *rand.Rand
	running map[string]string // by identity: the node; guarded by mu
	last    map[string]Has    // by identity: what it slept with last; zero: it has run on since
	runs    int
	lost    int
	faults  []string
	hosts   map[string]*host // guarded by mu
	handed  int              // workloads that came from another node
}

// reach is the daemon of a host, if there is one now.
func (a *arena) reach(node string) *Uploader {
	a.mu.Lock()
	defer a.mu.Unlock()
	if h := a.hosts[node]; h != nil && !h.away {
		return h.up
	}
	return nil
}

// between is what befalls a request from node to node, and its answer.
func (a *arena) between(string, bool) error {
	if a.chance(6) {
		time.Sleep(a.upTo(20 * time.Second))
	}
	if a.chance(8) {
		return fmt.Errorf("%w: it is lost", peer.ErrUnavailable)
	}
	return nil
}

func (a *arena) chance(n int) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.r.IntN(n) == 0
}

func (a *arena) upTo(d time.Duration) time.Duration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return time.Duration(a.r.Int64N(int64(d)))
}

func (a *arena) begins(identity, node string, right Right, version Has) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs++
	if other := a.running[identity]; other != "" {
		a.faults = append(a.faults, fmt.Sprintf("%v: %s runs on %s, and begins on %s (%+v)", time.Since(a.begin), identity, other, node, right))
	}
	if right.Whole && a.last[identity] != version {
		a.faults = append(a.faults, fmt.Sprintf("%v: %s is said to be whole on %s as %v, and slept last as %v (%+v)", time.Since(a.begin), identity, node, version, a.last[identity], right))
	}
	if !right.Whole {
		a.lost++
	}
	a.running[identity], a.last[identity] = node, Has{}
}

func (a *arena) ends(identity, node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.running[identity] == node {
		delete(a.running, identity)
	}
}

// host is a node of it.
type host struct {
	*world
	a       *arena
	name    string
	run     string
	up      *Uploader
	fence   *fence.Fence
	stop    func()
	store   *memstore.Store
	slow    bool // guarded by arena.mu
	away    bool // its daemon is; guarded by arena.mu
	sandbox map[string]*sandbox
}

// sandbox is a container's shim.
type sandbox struct {
	h        *host
	identity string
	lock     *os.File
	mu       sync.Mutex
	state    string
	right    *Right
	local    Local
	overtook bool // it was told that it is over
	lease    rights.Lease
	grants   int    // asked for
	late     string // a grant that nothing ran under, and of which that is told too late
}

func (a *arena) host(name string) *host {
	return &host{
		world: &world{t: a.t, data: a.t.TempDir(), bucket: a.bucket}, a: a, name: name, run: a.t.TempDir(), store: a.bucket.Store(), sandbox: map[string]*sandbox{},
	}
}

func (h *host) boot() time.Duration { return time.Since(h.a.begin) + time.Hour }

// daemon starts a process of hibernated.
func (h *host) startDaemon() {
	a := h.a
	self, err := fence.LoadSelf(Dir(h.data), h.name)
	h.must(err)
	way := late{h.store, func(op memstore.Op) time.Duration {
		a.mu.Lock()
		defer a.mu.Unlock()
		if !h.slow || a.r.IntN(3) != 0 {
			return 0
		}
		return time.Duration(a.r.Int64N(int64(2 * a.takeOver)))
	}, &a.writes}
	var up *Uploader
	log := slog.New(slog.NewTextHandler(&h.log, &slog.HandlerOptions{Level: slog.LevelDebug})).With("on", h.name)
	f := fence.New(fence.Options{
		Self: self, Dir: Dir(h.data), RunDir: h.run, After: a.takeOver, Tier: func() (*durable.Tier, error) { return up.Tier() },
		Claimed: func() bool { return up.AnyClaimed() }, Changed: func() { up.TermChanged() }, Boot: h.boot, Awake: h.boot, Log: log,
	})
	up = New(Options{
		DataDir: h.data, Open: func() (store.Store, error) { return way, nil }, URL: "s3://bucket/p?region=here", Node: h.name, Incarnation: self.Incarnation,
		Keys: durable.Keyring{Current: durable.InsecurePlaintext()}, ScanEvery: 5 * time.Second, MostPause: 10 * time.Second, Fence: f, Shims: h,
		Workers: 1, Peers: wire{me: h.name, of: a.reach, trouble: a.between, wait: 50 * time.Millisecond}, Log: log,
	})
	up.leftover.pause = func(context.Context, time.Duration) {}
	ctx, cancel := context.WithCancel(context.Background())
	var g sync.WaitGroup
	g.Go(func() { up.Run(ctx) })
	g.Go(func() {
		<-up.Ready()
		f.Run(ctx)
	})
	a.mu.Lock()
	h.up, h.fence, h.away = up, f, false
	a.mu.Unlock()
	h.stop = sync.OnceFunc(func() {
		cancel()
		g.Wait()
	})
}

// State and Fence implement Shims.
func (h *host) State(_ context.Context, _, identity string) (string, error) {
	s := h.sandbox[identity]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return "", nil
	}
	return s.state, nil
}

// Recorded: nobody takes anything down here.
func (h *host) Recorded(string, string) (bool, error) { return true, nil }

func (h *host) Fence(_ context.Context, _, identity string, _ uint64, _ string) (bool, error) {
	s := h.sandbox[identity]
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lock == nil {
		return false, nil
	}
	s.overtook = true
	return true, nil
}

func (s *sandbox) dir() string { return snapshot.DirFor(s.h.data, "default", "c", s.identity) }

func (s *sandbox) set(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = state
}

func (s *sandbox) head(state snapshot.State, sequence, epoch uint64) {
	s.h.document(filepath.Join(s.dir(), "head.json"), "hibernate.head", snapshot.Head{
		State: state, Sequence: sequence, Epoch: epoch, Time: time.Now().UTC(), Namespace: "default", ID: "c", Identity: s.identity, Lineage: lineageOf(s.identity),
	})
}

// begin makes the shim; its workload, if it was one before, sleeps or was awake.
func (s *sandbox) begin() {
	s.h.must(os.MkdirAll(s.dir(), 0o700))
	f, err := os.OpenFile(filepath.Join(s.dir(), "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	s.h.must(err)
	s.h.must(lockFile(f))
	s.mu.Lock()
	s.lock, s.state, s.right, s.overtook, s.local = f, "created", nil, false, Local{}
	s.mu.Unlock()
	if m, err := newest(s.dir()); err == nil {
		s.local = Local{Sequence: m.Sequence(), Epoch: m.Manifest().Epoch}
	}
}

func (s *sandbox) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.lock.Close()
	s.lock, s.state, s.right = nil, "", nil
}

// life is that of containers, one after the other, until ctx ends.
func (s *sandbox) life(ctx context.Context) {
	a := s.h.a
	for ctx.Err() == nil {
		s.begin()
		for pause(ctx, a.upTo(20*time.Second)) && s.wake(ctx) {
		}
		a.ends(s.identity, s.h.name)
		s.end()
		pause(ctx, a.upTo(20*time.Second))
	}
}

// wake is a wake, and what follows until it sleeps again. goesOn is false when the container has ended.
func (s *sandbox) wake(ctx context.Context) (goesOn bool) {
	if s.over() {
		return false
	}
	s.set("waking")
	s.grants++
	s.local.Grant = fmt.Sprintf("%s-%d", s.h.name, s.grants)
	asked, cancel := context.WithTimeout(ctx, 10*time.Second)
	right, err := s.h.daemon().Claim(asked, s.workload(), s.local)
	cancel()
	if s.late != "" {
		s.unused(ctx, s.late)
		s.late = ""
	}
	if err != nil {
		s.fails(ctx)
		return true
	}
	lease, err := rights.ReadLease(s.h.run)
	if err != nil || s.h.boot() >= lease.Sleep {
		s.fails(ctx)
		return true
	}
	s.mu.Lock()
	s.lease = lease
	s.mu.Unlock()
	if right.Received != "" && !s.takesIn(right) {
		s.set("asleep")
		return true
	}
	version := s.choose(right)
	if s.h.a.chance(8) { // it fails before anything runs
		s.fails(ctx)
		return true
	}
	s.head(snapshot.Awake, version.Sequence, right.Epoch)
	s.h.a.begins(s.identity, s.h.name, right, version)
	s.set("awake")
	return s.runFor(ctx, s.h.a.upTo(s.h.a.takeOver), version, right.Epoch)
}

// fails lets it sleep on, and says that nothing ran: at once, or when it is too late, or never.
func (s *sandbox) fails(ctx context.Context) {
	s.set("asleep")
	switch grant := s.local.Grant; {
	case s.h.a.chance(2):
		s.unused(ctx, grant)
	case s.h.a.chance(2):
		s.late = grant
	}
}

func (s *sandbox) unused(ctx context.Context, grant string) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_ = s.h.daemon().Unused(ctx, s.workload(), grant)
}

// takesIn has the directory have what came with the right.
func (s *sandbox) takesIn(right Right) bool {
	got, err := snapshot.OpenReceived(right.Received)
	if err != nil { // its daemon has found that it is damaged, or taken in
		return false
	}
	m := got.Manifest()
	s.h.must(os.RemoveAll(filepath.Join(s.dir(), strconv.FormatUint(m.Sequence, 10))))
	s.h.must(os.CopyFS(filepath.Join(s.dir(), strconv.FormatUint(m.Sequence, 10)), os.DirFS(right.Received)))
	s.head(snapshot.Asleep, m.Sequence, right.Epoch)
	s.local = Local{Sequence: m.Sequence, Epoch: m.Epoch}
	a := s.h.a
	a.mu.Lock()
	defer a.mu.Unlock()
	a.handed++
	return true
}

func (h *host) daemon() *Uploader {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	return h.up
}

// choose is what is restored: as package shim/sandbox's heed.
func (s *sandbox) choose(right Right) Has {
	best := Has{s.local.Sequence, s.local.Epoch}
	if len(right.Generations) > 0 {
		if g := right.Generations[0]; g.Epoch > best.Epoch || g.Epoch == best.Epoch && g.Sequence > best.Sequence {
			best = g
		}
	}
	return best
}

// runFor runs, and sleeps then, or when the lease says so.
func (s *sandbox) runFor(ctx context.Context, d time.Duration, from Has, epoch uint64) (goesOn bool) {
	for until := time.Now().Add(d); ; {
		now := s.h.boot()
		if l, err := rights.ReadLease(s.h.run); err == nil {
			s.lease = l
		}
		switch {
		case ctx.Err() != nil || s.over():
			s.h.a.ends(s.identity, s.h.name)
			return false
		case now >= s.lease.End:
			s.h.a.ends(s.identity, s.h.name)
			return false
		case now >= s.lease.Sleep || !time.Now().Before(until):
			s.set("hibernating")
			if s.h.a.chance(10) { // it dies instead
				s.h.a.ends(s.identity, s.h.name)
				return false
			}
			s.sleep(Has{from.Sequence + 1, epoch})
			return true
		}
		pause(ctx, 250*time.Millisecond)
	}
}

func (s *sandbox) sleep(v Has) {
	if s.local.Sequence >= v.Sequence {
		v.Sequence = s.local.Sequence + 1
	}
	m := snapshot.Manifest{Sequence: v.Sequence, Epoch: v.Epoch, Namespace: "default", ID: "c", Identity: s.identity, Lineage: lineageOf(s.identity), Created: time.Now().UTC()}
	s.h.writeSnapshot(filepath.Join(s.dir(), strconv.FormatUint(v.Sequence, 10)), m, memory(2, byte(v.Sequence)))
	a := s.h.a
	a.mu.Lock()
	a.last[s.identity] = v
	a.mu.Unlock()
	a.ends(s.identity, s.h.name)
	s.head(snapshot.Asleep, v.Sequence, v.Epoch)
	if s.local.Sequence != 0 {
		s.h.must(os.RemoveAll(filepath.Join(s.dir(), strconv.FormatUint(s.local.Sequence, 10))))
	}
	s.local = Local{Sequence: v.Sequence, Epoch: v.Epoch}
	s.set("asleep")
	s.h.daemon().Slept(key("c"), Wishes{Keep: 3, Identity: s.identity})
}

// over sets aside what was overtaken.
func (s *sandbox) over() bool {
	s.mu.Lock()
	overtook := s.overtook
	s.mu.Unlock()
	if !overtook {
		return false
	}
	if head, err := snapshot.ReadHead(s.dir()); err == nil {
		s.head(snapshot.Awake, head.Sequence, head.Epoch)
		s.h.must(os.RemoveAll(filepath.Join(s.dir(), strconv.FormatUint(head.Sequence, 10))))
	}
	return true
}

// trouble befalls a host until ctx ends.
func (h *host) trouble(ctx context.Context) {
	a := h.a
	for pause(ctx, a.upTo(2*a.takeOver)) {
		switch a.upTo(4) {
		case 0: // the store is away
			h.store.Script(memstore.Fault{Kind: memstore.Fail, Times: -1})
			pause(ctx, a.upTo(3*a.takeOver))
			h.store.Heal()
		case 1: // it answers late, or what was sent arrives late
			h.slowly(true)
			pause(ctx, a.upTo(3*a.takeOver))
			h.slowly(false)
		case 2: // answers are lost
			h.store.Before(func(memstore.Op, string) memstore.Fault {
				if a.chance(4) {
					return memstore.Fault{Kind: memstore.LoseAnswer}
				}
				return memstore.Fault{}
			})
			pause(ctx, a.upTo(a.takeOver))
			h.store.Heal()
		case 3: // the daemon is killed, and started again
			a.mu.Lock()
			h.away = true
			a.mu.Unlock()
			h.stop()
			pause(ctx, a.upTo(2*a.takeOver))
			h.startDaemon()
		}
	}
}

func (h *host) slowly(slow bool) {
	h.a.mu.Lock()
	defer h.a.mu.Unlock()
	h.slow = slow
}

// Nodes lose their store, their daemons and their answers, writes arrive long after they were given up, workloads die: in no moment two
// copies of one run, and what is said to be all of a workload is.
func TestNeverTwoExecutors(t *testing.T) {
	seeds := 6
	if n, err := strconv.Atoi(os.Getenv("HIBERNATE_CHAOS")); err == nil {
		seeds = n
	}
	handed := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { handed += executors(t, uint64(seed), 20*time.Minute) })
		})
	}
	if handed < seeds { // how many there are of a seed, the machine's load decides, too
		t.Errorf("only %d runs came from another node", handed)
	}
}

// executors returns how many runs came from another node.
func executors(t *testing.T, seed uint64, during time.Duration) int {
	a := &arena{
		t: t, bucket: memstore.NewBucket(), takeOver: time.Minute, begin: time.Now(), r: rand.New(rand.NewPCG(seed, 7)),
		running: map[string]string{}, last: map[string]Has{}, hosts: map[string]*host{},
	}
	ctx, cancel := context.WithCancel(t.Context())
	var lives sync.WaitGroup
	var hosts []*host
	for _, name := range []string{"a", "b", "c"} {
		h := a.host(name)
		hosts = append(hosts, h)
		a.mu.Lock()
		a.hosts[name] = h
		a.mu.Unlock()
		for _, identity := range []string{"x", "y"} {
			h.sandbox[identity] = &sandbox{h: h, identity: identity}
		}
		h.startDaemon()
		for _, s := range h.sandbox {
			lives.Go(func() { s.life(ctx) })
		}
		lives.Go(func() { h.trouble(ctx) })
	}
	time.Sleep(during)
	cancel()
	lives.Wait()
	for _, h := range hosts {
		h.store.Heal()
		h.stop()
	}
	a.writes.Wait()
	t.Logf("%d runs, of which %d had lost something; %d came from another node", a.runs, a.lost, a.handed)
	if a.runs < 10 {
		t.Errorf("only %d runs", a.runs)
	}
	for _, f := range a.faults {
		t.Error(f)
	}
	if t.Failed() {
		for _, h := range hosts {
			t.Log(h.log.String())
		}
	}
	return a.handed
}

func (s *sandbox) workload() api.Workload {
	return api.Workload{Namespace: "default", ID: "c", Identity: s.identity}
}

func lockFile(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
