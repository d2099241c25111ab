package executors

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// A ledger writes down what of one identity is committed where, by what lies on the disks and in the store, as runs go on.
type ledger struct {
	f        *Field
	identity string

	mu     sync.Mutex            // guards the fields below
	counts map[generation]uint64 // the beats that a snapshot has at least
	nonces map[generation]string // whose
	stored []commit              // what the store had, in the order in which it was seen
	heads  [2][]look             // of either node, each change
	quit   context.CancelFunc
	done   sync.WaitGroup
}

// generation is a snapshot's number.
type generation struct{ epoch, sequence uint64 }

// commit is a snapshot that the store was seen to have.
type commit struct {
	at    time.Time
	of    generation
	nonce string
	n     uint64
}

// look is a head of the local tier.
type look struct {
	at    time.Time
	state snapshot.State
	of    generation
}

func localDir(w *harness.World, identity string) string {
	return snapshot.DirFor(w.Path(w.DataDir()), w.Namespace, "", identity)
}

const lookEvery = 100 * time.Millisecond

// watch looks until stop.
func (f *Field) watch(ctx context.Context, identity string) *ledger {
	l := &ledger{f: f, identity: identity, counts: make(map[generation]uint64), nonces: make(map[generation]string)}
	ctx, l.quit = context.WithCancel(ctx)
	l.done.Go(func() {
		for ctx.Err() == nil {
			for i := range f.nodes {
				l.lookAt(i)
			}
			select {
			case <-ctx.Done():
			case <-time.After(lookEvery):
			}
		}
	})
	l.done.Go(func() {
		for ctx.Err() == nil {
			l.lookAtStore(ctx)
			select {
			case <-ctx.Done():
			case <-time.After(lookEvery):
			}
		}
	})
	return l
}

func (l *ledger) stop() { l.quit(); l.done.Wait() }

// lookAt reads a node's head. Who sleeps with a snapshot has it made after all that was heard before the look.
func (l *ledger) lookAt(i int) {
	last, heard := l.f.Witness.Last(l.identity)
	at := time.Now()
	h, err := snapshot.ReadHead(l.f.nodes[i].dir(l.identity))
	if err != nil {
		return
	}
	now := look{at, h.State, generation{h.Epoch, h.Sequence}}
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.heads[i]
	if n := len(all); n > 0 && all[n-1].state == now.state && all[n-1].of == now.of {
		return
	}
	l.heads[i] = append(all, now)
	if _, known := l.counts[now.of]; now.state == snapshot.Asleep && heard && !known {
		l.counts[now.of], l.nonces[now.of] = last.N, last.Nonce
	}
}

// lookAtStore reads the store's head.
func (l *ledger) lookAtStore(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	dir := l.f.nodes[0].dir(l.identity)
	lineage, err := l.f.tier.Lineage(filepath.Base(filepath.Dir(dir)) + "/" + filepath.Base(dir))
	if err != nil {
		return
	}
	h, err := lineage.Head(ctx)
	if err != nil {
		return
	}
	g, ok := h.Newest()
	if !ok {
		return
	}
	of := generation{g.Epoch, g.Sequence}
	l.mu.Lock()
	defer l.mu.Unlock()
	n, known := l.counts[of]
	if !known || len(l.stored) > 0 && l.stored[len(l.stored)-1].of == of {
		return
	}
	l.stored = append(l.stored, commit{time.Now(), of, l.nonces[of], n})
}

// floor is what the store had at a time: nothing that runs later may be older.
func (l *ledger) floor(at time.Time) (c commit, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.stored {
		if s.at.Before(at) {
			c, ok = s, true
		}
	}
	return c, ok
}

// asleep is the snapshot with which a node had it sleep at a time.
func (l *ledger) asleep(i int, at time.Time) (of generation, n uint64, nonce string, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var last look
	for _, h := range l.heads[i] {
		if h.at.Before(at) {
			last = h
		}
	}
	n, ok = l.counts[last.of]
	return last.of, n, l.nonces[last.of], ok && last.state == snapshot.Asleep
}

// A loss is what a shim has told of a wake that went on from an older state, or from none.
type loss struct {
	at   time.Time
	line string
}

// lossPattern is of shims' lines in containerd's log, and of the daemon's of what they have told it.
var lossPattern = regexp.MustCompile(`time="?(\S+?)"? .*msg=(wake .*outcome=(restored-older|cold-started)|"cold start")`)

// losses are what the shim of a container has told.
func (n *node) losses(container string) (all []loss) {
	for _, p := range []*harness.Program{n.Containerd, n.Daemon} {
		text, err := os.ReadFile(p.LogFile)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			m := lossPattern.FindStringSubmatch(line)
			if m == nil || !strings.Contains(line, " id="+container+" ") {
				continue
			}
			if at, err := time.Parse(time.RFC3339Nano, m[1]); err == nil {
				all = append(all, loss{at, strings.TrimSpace(line)})
			}
		}
	}
	return all
}

// keeps says whether a node still has a snapshot of an identity, to be restored or set aside.
func (n *node) keeps(identity string, of generation) bool {
	dir := n.dir(identity)
	number := strconv.FormatUint(of.sequence, 10)
	if _, err := os.Stat(filepath.Join(dir, number, "manifest.json")); err == nil {
		return true
	}
	aside, _ := filepath.Glob(filepath.Join(dir, "quarantine", number+"-*"))
	return len(aside) > 0
}
