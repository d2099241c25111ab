package admission

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// model plays a node: workloads that sleep, wake and take memory, at random, and checks what must always hold.
type model struct {
	t      *testing.T
	rand   *rand.Rand
	core   *core
	now    time.Time
	total  uint64               // memory of the node
	awake  map[node.Key]uint64  // what is taken
	waking map[node.Key]wake    // what will be
	wait   []*ticket            // in the order of coming
	held   map[*ticket]struct{} // granted, not given back
	served map[string]int       // grants by namespace while all of them waited
}

// wake is one that is under way.
type wake struct {
	need  uint64
	began time.Time
}

// TestModel: whatever comes in whatever order, no more wakes are granted at once than there may be, the memory is never
// promised twice, tickets of a namespace are served in order, no namespace waits for another, and nobody is forgotten.
func TestModel(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 4))
		m := &model{
			t: t, rand: r, now: epoch, total: 1000, awake: map[node.Key]uint64{}, waking: map[node.Key]wake{},
			held: map[*ticket]struct{}{}, served: map[string]int{},
			core: newCore(Limits{Wakes: 1 + r.IntN(4), Queue: 5 + r.IntN(40), Spare: uint64(r.IntN(100))}),
		}
		for range 400 {
			m.random()
			m.settle()
		}
		m.finish()
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

func (m *model) key() node.Key {
	return node.Key{Namespace: string(rune('a' + m.rand.IntN(3))), ID: fmt.Sprint(m.rand.IntN(12))}
}

func (m *model) random() {
	key := m.key()
	switch op := m.rand.IntN(12); {
	case op < 5:
		if m.awake[key] != 0 {
			return
		}
		t := m.core.enter(m.now, key, uint64(1+m.rand.IntN(300)))
		if t.refusal != nil {
			if m.core.waiting < m.core.limits.Queue {
				m.t.Errorf("%s is refused while %d wait", key, m.core.waiting)
			}
			return
		}
		m.wait = append(m.wait, t)
	case op < 6: // a packet wakes it
		if m.awake[key] == 0 && m.waking[key].need == 0 {
			m.begin(key, 50)
		}
	case op < 7: // a client goes
		if len(m.wait) > 0 {
			i := m.rand.IntN(len(m.wait))
			m.core.leave(m.wait[i])
			m.wait = slices.Delete(m.wait, i, i+1)
		}
	case op < 10:
		m.wakeOne()
	case op < 11:
		delete(m.awake, key) // it sleeps
	default:
		m.now = m.now.Add(time.Duration(m.rand.IntN(100)) * time.Millisecond)
	}
}

func (m *model) begin(key node.Key, need uint64) {
	m.waking[key] = wake{need, m.now}
	m.core.state(m.now, key, "waking", need)
}

// wakeOne ends one wake, and gives back its tickets.
func (m *model) wakeOne() {
	if len(m.waking) == 0 {
		return
	}
	keys := slices.SortedFunc(maps.Keys(m.waking), func(a, b node.Key) int { return strings.Compare(a.String(), b.String()) })
	key := keys[m.rand.IntN(len(keys))] // a seed plays the same each time
	m.awake[key] = m.waking[key].need
	delete(m.waking, key)
	m.core.state(m.now, key, "awake", 0)
	for t := range m.held {
		if t.key == key {
			m.core.leave(t)
			delete(m.held, t)
		}
	}
}

// load is how many wakes count, and what they need: one of which nothing is heard for long takes no turn from others.
func (m *model) load() (wakes int, reserved uint64) {
	for _, w := range m.waking {
		if m.now.Sub(w.began) < stuckAfter {
			wakes++
			reserved += w.need
		}
	}
	return wakes, reserved
}

func (m *model) available() uint64 {
	free := m.total
	for _, bytes := range m.awake {
		free -= min(bytes, free)
	}
	return free
}

func (m *model) memory() memory {
	return memory{known: true, available: m.available(), evictable: func() uint64 { return m.total - m.available() }}
}

// settle steps, and checks each grant.
func (m *model) settle() {
	before := m.core.waiting
	settled, _ := m.core.step(m.now, m.memory)
	if m.core.waiting+len(settled) != before {
		m.t.Errorf("%d waited, %d wait, %d are settled", before, m.core.waiting, len(settled))
	}
	for _, t := range settled {
		i := slices.Index(m.wait, t)
		if i < 0 {
			m.t.Fatalf("%s is settled twice, or was never there", t.key)
		}
		m.wait = slices.Delete(m.wait, i, i+1)
		if t.refusal != nil {
			if t.need+m.core.limits.Spare <= m.total {
				m.t.Errorf("%s is refused for %d of %d", t.key, t.need, m.total)
			}
			continue
		}
		m.held[t] = struct{}{}
		if m.waking[t.key].need != 0 {
			continue // it joins
		}
		for _, other := range m.wait {
			if other.key.Namespace == t.key.Namespace && other.since.Before(t.since) && other.passed == 0 {
				m.t.Errorf("%s passes %s unseen", t.key, other.key)
			}
			if other.passed > passMax {
				m.t.Errorf("%s was passed %d times", other.key, other.passed)
			}
		}
		m.begin(t.key, t.need)
		wakes, reserved := m.load()
		if reserved+m.core.limits.Spare > m.available() {
			m.t.Errorf("%d are promised beside %d, of %d", reserved, m.core.limits.Spare, m.available())
		}
		if wakes > m.core.limits.Wakes {
			m.t.Errorf("%d wakes at once", wakes)
		}
	}
}

// finish has everything sleep again and wakes end, until nobody waits.
func (m *model) finish() {
	for range 2000 {
		if len(m.wait) == 0 {
			break
		}
		m.wakeOne()
		clear(m.awake)
		m.now = m.now.Add(time.Second)
		m.settle()
	}
	for len(m.waking) > 0 {
		m.wakeOne()
	}
	if len(m.wait) > 0 || m.core.waiting != 0 || len(m.core.turns) != 0 || len(m.core.queues) != 0 {
		m.t.Errorf("forgotten: %v; the core has %d", ids(m.wait), m.core.waiting)
	}
	for t := range m.held {
		m.core.leave(t)
	}
	if m.core.load(m.now); len(m.core.running) != 0 {
		m.t.Errorf("%d runs are left", len(m.core.running))
	}
}

// TestFairness: one namespace's storm costs another no more than a turn.
func TestFairness(t *testing.T) {
	c := newCore(Limits{Wakes: 1, Queue: 1000})
	var order []string
	var all []*ticket
	for i := range 300 {
		all = append(all, c.enter(epoch, node.Key{Namespace: "storm", ID: fmt.Sprint(i)}, 1))
	}
	for i := range 3 {
		all = append(all, c.enter(epoch, node.Key{Namespace: "quiet", ID: fmt.Sprint(i)}, 1))
	}
	for range all {
		settled, _ := c.step(epoch, func() memory { return memory{} })
		if len(settled) != 1 {
			t.Fatalf("%d at once", len(settled))
		}
		order = append(order, settled[0].key.String())
		c.leave(settled[0])
	}
	want := []string{"storm/0", "quiet/0", "storm/1", "quiet/1", "storm/2", "quiet/2", "storm/3"}
	if !slices.Equal(order[:len(want)], want) {
		t.Errorf("in the order %v", order[:len(want)])
	}
	for i := 4; i < 300; i++ {
		if order[i+3] != fmt.Sprintf("storm/%d", i) {
			t.Fatalf("place %d is %s's", i+3, order[i+3])
		}
	}
}
