package durable

import (
	"fmt"
	"math/bits"
	"os"
	"strings"
	"testing"
)

// The protocol of docs/FORMAT.md, "Protocol", as a machine whose every order of steps is tried: writers, collectors and
// readers of one lineage, each of which may die anywhere. There is no time: whatever isn't named may be condemned at
// once, whatever its age and whoever is at work on it, so that what is found to hold rests on no clock and no lease of a writer.
//
// What must hold: every pack that the head names is there; so is every pack that a reader who has been let in reads.

// protocol is what is tried: the one that is built, or one with a part of it left out.
type protocol struct {
	noCAS       bool // collectors delete what they find unreachable
	noLists     bool // collectors change the head before they delete, writers look whether their packs are there
	sameNames   bool // a pack's name is that of its content: what is there is not uploaded
	dropAtOnce  bool // a generation is dropped by the change that condemns what it had
	trustBase   bool // a writer looks only for its own packs in lists
	leaseLate   bool // a reader writes its lease after it has looked at the head
	forgetLists bool // a writer doesn't look at lists that came between its plan and its commit
}

// bounds of a search.
type bounds struct{ writers, ops, collectors, runs, readers, packs int }

const (
	maxActors = 2
	modelGens = 3
	modelPack = 7
)

type (
	modelWriter struct{ pc, rev, gc, base, own, ops uint8 }
	modelReader struct{ pc, gen uint8 }
	modelGC     struct{ pc, rev, gc, next, keep, listed, leased, todo, runs uint8 }
)

// model is a state. Sets of packs are bits; a generation is the set of its packs, newest first.
type model struct {
	there, used uint8
	rev, gc     uint8
	gens        [modelGens]uint8
	lists       [5]uint8
	writers     [maxActors]modelWriter
	readers     [maxActors]modelReader
	gcs         [maxActors]modelGC
}

// Steps of a writer, a collector and a reader.
const (
	wIdle, wUpload, wCommit, wReread                           = 0, 1, 2, 3
	cIdle, cList, cDrop, cRead2, cCondemn, cDelete, cDeleteOld = 0, 1, 2, 3, 4, 5, 6
	rIdle, rLease, rCheck, rRead, rDone                        = 0, 1, 2, 3, 4
)

// step is what an actor does, maybe with some packs.
type step struct {
	who  string
	i    int
	what string
	set  uint8
}

func (s step) String() string {
	if s.set == 0 {
		return fmt.Sprintf("%s %d %s", s.who, s.i, s.what)
	}
	return fmt.Sprintf("%s %d %s %07b", s.who, s.i, s.what, s.set)
}

func (m *model) newest() uint8 { return m.gens[0] }

func (m *model) reachable() (set uint8) {
	for _, g := range m.gens {
		set |= g
	}
	return set
}

func (m *model) has(gen uint8) bool {
	for _, g := range m.gens {
		if g == gen && g != 0 {
			return true
		}
	}
	return false
}

// condemned in lists after since.
func (m *model) condemned(since uint8) (set uint8) {
	for n := since + 1; n <= m.gc; n++ {
		set |= m.lists[n]
	}
	return set
}

func (m *model) leases() (sets []uint8) {
	for _, r := range m.readers {
		if r.pc == rCheck || r.pc == rRead {
			sets = append(sets, r.gen)
		}
	}
	return sets
}

// broken says what doesn't hold.
func (m *model) broken() string {
	if lost := m.reachable() &^ m.there; lost != 0 {
		return fmt.Sprintf("the head names %07b, which is gone", lost)
	}
	for _, r := range m.readers {
		if r.pc == rRead && r.gen&^m.there != 0 {
			return fmt.Sprintf("a reader reads %07b, and of that %07b is gone", r.gen, r.gen&^m.there)
		}
	}
	return ""
}

// successors calls yield with every state that one step leads to, and what that is.
func (m model) successors(p protocol, b bounds, yield func(what step, next model)) {
	for i := range b.writers {
		m.writer(p, b, i, yield)
	}
	for i := range b.collectors {
		m.collector(p, i, yield)
	}
	for i := range b.readers {
		m.reader(p, i, yield)
	}
}

func (m model) writer(p protocol, b bounds, i int, yield func(step, model)) {
	say := func(what string, n model) { yield(step{"writer", i, what, 0}, n) }
	w := &m.writers[i]
	if w.pc != wIdle {
		n := m
		n.writers[i] = modelWriter{ops: w.ops}
		say("dies", n)
	}
	switch w.pc {
	case wIdle:
		if w.ops == 0 {
			return
		}
		n := m
		n.writers[i] = modelWriter{pc: wUpload, rev: m.rev, gc: m.gc, ops: w.ops - 1}
		say("plans a full upload", n)
		if m.newest() != 0 {
			n.writers[i].base = m.newest()
			say("plans an increment", n)
		}
	case wUpload:
		n := m
		name := bits.TrailingZeros8(^m.used)
		if p.sameNames && w.own == 0 {
			name = 6 - i // of its content, whoever has uploaded it before
		}
		if name >= b.packs && !p.sameNames || name >= modelPack {
			return
		}
		n.used |= 1 << name
		n.there |= 1 << name
		n.writers[i].own |= 1 << name
		n.writers[i].pc = wCommit
		yield(step{"writer", i, "uploads pack", 1 << name}, n)
	case wCommit:
		n := m
		if w.rev != m.rev {
			n.writers[i].pc = wReread
			say("finds another head", n)
			return
		}
		if m.gens[modelGens-1] != 0 {
			return
		}
		copy(n.gens[1:], m.gens[:])
		n.gens[0] = w.own | w.base
		n.rev++
		n.writers[i] = modelWriter{ops: w.ops}
		say("commits", n)
	case wReread:
		n := m
		nw := &n.writers[i]
		gone := m.condemned(w.gc)
		switch {
		case p.forgetLists || p.noCAS:
			gone = 0
		case p.noLists:
			gone = ^m.there
		}
		nw.rev, nw.gc, nw.pc = m.rev, m.gc, wCommit
		lost := w.own & gone
		nw.own &^= lost
		if p.sameNames && lost != 0 {
			nw.own = 0
		}
		if w.base&gone != 0 && !p.trustBase {
			lost, nw.base = 1, 0
		}
		if lost != 0 {
			nw.pc = wUpload
		}
		say("plans with the new head", n)
	}
}

func (m model) collector(p protocol, i int, yield func(step, model)) {
	say := func(what string, n model) { yield(step{"collector", i, what, 0}, n) }
	c := m.gcs[i]
	n := m
	nc := &n.gcs[i]
	end := func(what string) {
		*nc = modelGC{runs: c.runs}
		say(what, n)
	}
	if c.pc != cIdle {
		end("dies")
		*nc = c
	}
	switch c.pc {
	case cIdle:
		if c.runs == 0 {
			return
		}
		*nc = modelGC{pc: cList, rev: m.rev, gc: m.gc, keep: m.reachable(), next: m.newest(), runs: c.runs - 1}
		say("reads the head", n)
	case cList:
		nc.listed, nc.leased = m.there, 0
		keep := c.next
		for _, set := range m.leases() {
			nc.leased |= set
			if m.has(set) {
				keep |= set
			}
		}
		// What it would do next follows from what it knows.
		switch {
		case p.noCAS:
			nc.todo, nc.pc = m.there&^c.keep&^nc.leased, cDelete
		case p.dropAtOnce:
			nc.todo, nc.pc = m.there&^keep&^nc.leased, cCondemn
		case m.droppable(*nc) && m.rev == c.rev:
			nc.pc = cDrop
		default:
			nc.todo, nc.pc = m.there&^c.keep&^nc.leased, cCondemn
		}
		if nc.pc == cCondemn && !p.noLists {
			// First what stands in lists that the head named.
			old := uint8(0)
			for k := uint8(1); k <= c.gc; k++ {
				old |= m.lists[k]
			}
			if old &= m.there &^ c.keep; old != 0 {
				nc.listed, nc.todo, nc.pc = nc.todo&^old, old, cDeleteOld
			}
		}
		say("lists", n)
	case cDrop:
		if m.rev != c.rev {
			end("finds another head")
			return
		}
		n.gens, _ = m.kept(c)
		n.rev++
		nc.pc = cRead2
		say("drops generations", n)
	case cRead2:
		*nc = modelGC{pc: cList, rev: m.rev, gc: m.gc, keep: m.reachable(), next: m.newest(), runs: c.runs}
		say("reads the head again", n)
	case cDeleteOld:
		if c.todo == 0 {
			nc.todo, nc.pc = c.listed, cCondemn
			say("has deleted what was condemned before", n)
			return
		}
		n.there &^= c.todo & -c.todo
		nc.todo &^= c.todo & -c.todo
		say("deletes what was condemned before", n)
	case cCondemn:
		if c.todo == 0 {
			end("has nothing to do")
			return
		}
		if m.rev != c.rev {
			end("finds another head")
			return
		}
		n.rev++
		if !p.noLists {
			n.gc++
			n.lists[n.gc] = c.todo
		}
		if p.dropAtOnce {
			for k, g := range m.gens {
				if g&c.todo != 0 {
					copy(n.gens[k:], make([]uint8, modelGens-k))
					break
				}
			}
		}
		nc.pc = cDelete
		yield(step{"collector", i, "condemns", c.todo}, n)
	case cDelete:
		if c.todo == 0 {
			end("is done")
			return
		}
		n.there &^= c.todo & -c.todo
		nc.todo &^= c.todo & -c.todo
		say("deletes one", n)
	}
}

// droppable is true when generations but the newest can be dropped, as far as the collector has seen.
func (m *model) droppable(c modelGC) bool {
	_, dropped := m.kept(c)
	return dropped
}

// kept is one generation, and those under a lease that was seen.
func (m *model) kept(c modelGC) (out [modelGens]uint8, dropped bool) {
	k := 0
	for i, g := range m.gens {
		switch {
		case g == 0:
		case i == 0 || m.seenLease(c, g):
			out[k] = g
			k++
		default:
			dropped = true
		}
	}
	return out, dropped
}

// seenLease is true for all of what lies in the leases that were listed; that may keep more, never less.
func (m *model) seenLease(c modelGC, gen uint8) bool { return gen&^c.leased == 0 }

func (m model) reader(p protocol, i int, yield func(step, model)) {
	say := func(what string, n model) { yield(step{"reader", i, what, 0}, n) }
	r := m.readers[i]
	n := m
	nr := &n.readers[i]
	if r.pc != rIdle && r.pc != rDone {
		*nr = modelReader{pc: rDone}
		say("ends", n)
	}
	switch r.pc {
	case rIdle:
		for _, g := range m.gens {
			if g != 0 {
				*nr = modelReader{pc: rLease, gen: g}
				yield(step{"reader", i, "reads the head, and wants", g}, n)
			}
		}
	case rLease:
		if *nr = (modelReader{pc: rCheck, gen: r.gen}); p.leaseLate {
			nr.pc = rRead
		}
		say("writes its lease", n)
	case rCheck:
		if m.has(r.gen) {
			*nr = modelReader{pc: rRead, gen: r.gen}
			say("finds its generation still there", n)
		}
	}
}

// start has one generation of one pack.
func start(b bounds) model {
	m := model{there: 1, used: 1, rev: 1, gens: [modelGens]uint8{1}}
	for i := range b.writers {
		m.writers[i].ops = uint8(b.ops)
	}
	for i := range b.collectors {
		m.gcs[i].runs = uint8(b.runs)
	}
	for i := range maxActors - b.readers {
		m.readers[maxActors-1-i].pc = rDone
	}
	return m
}

// search tries all orders, the shortest first, and gives the steps to the first state that is broken.
func search(p protocol, b bounds) (states int, broken string, steps []string) {
	first := start(b)
	seen := map[model]struct{}{first: {}}
	queue, parents := []model{first}, []int32{-1}
	bad := -1
	for i := 0; i < len(queue) && bad < 0; i++ {
		queue[i].successors(p, b, func(_ step, next model) {
			if _, ok := seen[next]; ok || bad >= 0 {
				return
			}
			seen[next] = struct{}{}
			queue, parents = append(queue, next), append(parents, int32(i))
			if broken = next.broken(); broken != "" {
				bad = len(queue) - 1
			}
		})
	}
	for i := bad; i > 0; i = int(parents[i]) {
		queue[parents[i]].successors(p, b, func(what step, next model) {
			if next == queue[i] && (len(steps) == 0 || steps[0] != "") {
				steps = append([]string{""}, steps...)
				steps[0] = what.String()
			}
		})
	}
	return len(queue), broken, steps
}

// The protocol as it is loses nothing, in whatever order.
func TestModel(t *testing.T) {
	all := []bounds{
		{writers: 2, ops: 1, collectors: 1, runs: 2, readers: 1, packs: 5},
		{writers: 1, ops: 2, collectors: 2, runs: 1, readers: 1, packs: 5},
		{writers: 1, ops: 2, collectors: 1, runs: 2, readers: 2, packs: 5},
	}
	if os.Getenv("HIBERNATE_MODEL") != "" { // some minutes, and gigabytes
		all = append(all,
			bounds{writers: 2, ops: 2, collectors: 1, runs: 2, readers: 0, packs: 6},
			bounds{writers: 2, ops: 1, collectors: 2, runs: 1, readers: 1, packs: 5},
		)
	}
	for _, b := range all {
		states, broken, steps := search(protocol{}, b)
		t.Logf("%+v: %d states", b, states)
		if broken != "" {
			t.Errorf("%+v: %s:\n\t%s", b, broken, strings.Join(steps, "\n\t"))
		}
	}
}

// With any part left out something is lost.
func TestModelFinds(t *testing.T) {
	for _, c := range []struct {
		what string
		p    protocol
		b    bounds
	}{
		{"variant 0: what is unreachable is deleted", protocol{noCAS: true}, bounds{writers: 1, ops: 1, collectors: 1, runs: 1, packs: 3}},
		{"variant 1: writers look whether their packs are there", protocol{noLists: true}, bounds{writers: 1, ops: 1, collectors: 1, runs: 1, packs: 3}},
		{"variant 3: names by content", protocol{sameNames: true}, bounds{writers: 2, ops: 2, collectors: 1, runs: 1, packs: 4}},
		{"lists are not looked at", protocol{forgetLists: true}, bounds{writers: 1, ops: 1, collectors: 1, runs: 1, packs: 3}},
		{"lists are looked at for the own packs only", protocol{trustBase: true}, bounds{writers: 2, ops: 1, collectors: 1, runs: 1, packs: 4}},
		{"a generation is dropped and condemned at once", protocol{dropAtOnce: true}, bounds{writers: 1, ops: 1, collectors: 1, runs: 1, readers: 1, packs: 3}},
		{"a lease is written after the look", protocol{leaseLate: true}, bounds{writers: 1, ops: 1, collectors: 1, runs: 1, readers: 1, packs: 3}},
	} {
		states, broken, steps := search(c.p, c.b)
		if broken == "" {
			t.Errorf("%s: nothing is found in %d states", c.what, states)
			continue
		}
		t.Logf("%s: %s, in %d steps:\n\t%s", c.what, broken, len(steps), strings.Join(steps, "\n\t"))
	}
}
