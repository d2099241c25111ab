package durable

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// Who may run a workload, as docs/decisions/0008 has it, as a machine whose every order of steps is tried: two nodes, a head, and time in
// few steps. One has claimed, and may come to be silent at any time; the other wants to take over, and never lacks a lease. A daemon may stop anywhere for as long as it likes, and go on with what it had concluded; a write may arrive
// at any time after it was sent, whoever has given it up; clocks differ by what slack allows. What a shim does at its lease's end it does.
//
// What must hold: never do both run.

// Of the rules, in steps of time: what they are apart is for clocks that differ.
const (
	leaseLasts = 2 // from when its beat was begun
	deadAfter  = 3 // of silence
)

// rightsRules is what is tried: the rules as they are, or with one of them left out.
type rightsRules struct {
	deadAfter      uint8 // 0: the one that is built
	leaseConfirmed bool  // a lease counts from when its beat was confirmed
	oldTerms       bool  // what was claimed before the lease has ended counts when there is one again
	judgeFirst     bool  // a node is judged before the head is read
	unbound        bool  // a claim is made over any head that has the owner who was judged
	releaseAsMade  bool  // a release whose answer doesn't come is taken for not made, without asking
	yieldKeeps     bool  // who has yielded goes on without changing the head
	yieldRuns      bool  // what runs is yielded, too
	yieldFirst     bool  // the owner is asked before the head is read
}

// Steps of a write to the store: it is sent, and may be given up by its sender before or after it has arrived.
const (
	wNone, wSent, wArrived, wGivenUp, wRefused = 0, 1, 2, 3, 4
)

// What a node knows of its claim, and what a write to the head is for.
const (
	kNone, kStale, kHeld       = 0, 1, 2
	hTake, hConfirm, hGiveAway = 1, 2, 3
)

const owner, taker = 0, 1

type rightsNode struct {
	lease, beat, age uint8 // left; a write of its object, and how long ago that was begun
	news             bool  // its object has changed since the other one looked
	silence          uint8 // of the other
	claim            uint8
	runs             bool
	looked           bool  // at the head, and concluded from it:
	seen             uint8 // its version
	seenOwner        uint8
	judged           bool  // the other one was dead since
	head             uint8 // a write of the head
	what, over       uint8 // what for, and over which version
	crossed          bool  // the lease has ended since that was sent
}

type rightsModel struct {
	version, owner uint8 // of the head; owner is a node's number and one
	slack          uint8 // by which clocks may still differ
	nodes          [2]rightsNode
}

type rightsBounds struct{ versions, slack uint8 }

func (m rightsModel) successors(r rightsRules, b rightsBounds, yield func(string, rightsModel)) {
	for i := range m.nodes {
		m.node(r, b, i, func(what string, n rightsModel) { yield(fmt.Sprintf("%c %s", 'a'+i, what), n) })
	}
	n := m
	n.nodes[owner].tick()
	n.nodes[taker].silence = min(n.nodes[taker].silence+1, deadAfter)
	yield("time passes", n)
	if m.slack > 0 && m.nodes[taker].silence < deadAfter {
		n := m
		n.slack--
		n.nodes[taker].silence++
		yield("b's clock runs fast", n)
	}
}

func (n *rightsNode) tick() {
	if n.beat != wNone {
		n.age = min(n.age+1, leaseLasts)
	}
	if n.lease == 0 {
		return
	}
	if n.lease--; n.lease == 0 { // the shim sees to that
		n.runs, n.crossed = false, true
	}
}

func (m rightsModel) node(r rightsRules, b rightsBounds, i int, yield func(string, rightsModel)) {
	me, other := m.nodes[i], m.nodes[1-i]
	do := func(what string, change func(n *rightsModel, me *rightsNode)) {
		n := m
		change(&n, &n.nodes[i])
		yield(what, n)
	}
	// The heart.
	if i == owner && me.beat == wNone {
		do("begins a beat", func(_ *rightsModel, me *rightsNode) { me.beat, me.age = wSent, 0 })
	}
	if me.beat == wSent || me.beat == wGivenUp {
		do("'s beat arrives", func(_ *rightsModel, me *rightsNode) {
			if me.news = true; me.beat == wSent {
				me.beat = wArrived
			} else {
				me.beat, me.age = wNone, 0
			}
		})
	}
	if me.beat == wSent {
		do("gives a beat up", func(_ *rightsModel, me *rightsNode) { me.beat = wGivenUp })
	}
	if me.beat == wArrived {
		do("has its beat confirmed", func(_ *rightsModel, me *rightsNode) {
			left := leaseLasts - me.age
			if r.leaseConfirmed {
				left = leaseLasts
			}
			if me.lease == 0 && me.claim == kHeld && !r.oldTerms {
				me.claim = kStale
			}
			me.lease = max(me.lease, left)
			me.beat, me.age = wNone, 0
		})
	}
	// Looks at the other's object.
	look := do
	if i == owner {
		look = func(string, func(*rightsModel, *rightsNode)) {}
	}
	look("looks at the other node", func(n *rightsModel, me *rightsNode) {
		if other.news {
			n.nodes[1-i].news, me.silence = false, 0
		}
		dead := r.deadAfter
		if dead == 0 {
			dead = deadAfter
		}
		me.judged = me.silence >= dead && (me.looked || r.judgeFirst)
	})
	// The peer path: who has read that the other one is the owner asks it to yield. While it answers it does nothing else about the head.
	if ask := me.looked && me.seenOwner == uint8(2-i) || r.yieldFirst && !me.looked; ask && !me.judged && me.head == wNone &&
		other.claim == kHeld && (!other.runs || r.yieldRuns) && (other.head == wNone || other.head == wGivenUp) {
		yields := func(what string, heard bool) {
			do(what, func(n *rightsModel, me *rightsNode) {
				me.judged = heard
				if !r.yieldKeeps {
					n.nodes[1-i].claim = kStale
				}
			})
		}
		yields("has it yielded", true)
		yields("has it yielded, and doesn't hear of it", false)
	}
	// The head.
	mine := uint8(i + 1)
	if me.head == wNone {
		do("reads the head", func(_ *rightsModel, me *rightsNode) {
			me.looked, me.seen, me.seenOwner = true, m.version, m.owner
			me.judged = me.judged && (r.judgeFirst || r.yieldFirst)
		})
		send := func(what string, kind uint8) {
			do(what, func(_ *rightsModel, me *rightsNode) {
				me.head, me.what, me.over, me.looked, me.judged, me.crossed = wSent, kind, me.seen, false, false, me.lease == 0
				if kind == hGiveAway {
					me.claim = kStale
				}
			})
		}
		if me.looked && m.version < b.versions {
			switch {
			case me.seenOwner == mine && me.claim == kStale:
				send("confirms", hConfirm)
				send("claims its own again", hTake)
			case me.seenOwner == 0 && me.claim == kNone && me.lease > 0:
				send("claims", hTake)
			case me.seenOwner != 0 && me.seenOwner != mine && me.judged && me.lease > 0:
				send("takes over", hTake)
			case me.seenOwner == mine && me.claim == kHeld && !me.runs:
				send("gives it away", hGiveAway)
			}
		}
	}
	if me.head == wSent || me.head == wGivenUp {
		do("'s write of the head arrives", func(n *rightsModel, me *rightsNode) {
			applies := n.version == me.over
			if r.unbound && me.what == hTake {
				applies = true
			}
			given := me.head == wGivenUp
			me.head = wRefused
			if applies && n.version < b.versions {
				n.version++
				me.head = wArrived
				switch me.what {
				case hTake:
					n.owner = mine
				case hGiveAway:
					n.owner = 0
				}
			}
			if given {
				me.head, me.what, me.over, me.crossed = wNone, 0, 0, false
			}
		})
	}
	if me.head == wSent {
		do("gives its write of the head up", func(_ *rightsModel, me *rightsNode) {
			me.head = wGivenUp
			if me.what == hGiveAway && r.releaseAsMade {
				me.claim = kHeld
			}
		})
	}
	if me.head == wGivenUp { // what comes next needn't wait for it: one more write at a time is enough, so it is forgotten
		do("'s write is lost", func(_ *rightsModel, me *rightsNode) { me.head, me.what, me.over, me.crossed = wNone, 0, 0, false })
	}
	if me.head == wArrived || me.head == wRefused {
		do("hears of its write", func(n *rightsModel, me *rightsNode) {
			won := me.head == wArrived
			switch {
			case !won && me.what == hTake:
			case !won: // somebody else was at it
				me.claim = kStale
			case me.what == hGiveAway:
				me.claim = kNone
			case me.crossed || me.lease == 0:
				me.claim = kStale
			default:
				me.claim = kHeld
			}
			me.head, me.what, me.over, me.crossed = wNone, 0, 0, false
		})
	}
	if me.claim == kStale && me.looked && me.seenOwner != mine {
		do("finds its claim over", func(_ *rightsModel, me *rightsNode) { me.claim = kNone })
	}
	// The workload.
	if !me.runs && me.claim == kHeld && me.lease > 0 {
		do("runs it", func(_ *rightsModel, me *rightsNode) { me.runs = true })
	}
	if me.runs {
		do("puts it to sleep", func(_ *rightsModel, me *rightsNode) { me.runs = false })
	}
}

func (m *rightsModel) broken() string {
	if m.nodes[0].runs && m.nodes[1].runs {
		return "both run it"
	}
	return ""
}

// normal makes states equal that differ in nothing that matters.
func (m rightsModel) normal() rightsModel {
	for i := range m.nodes {
		n := &m.nodes[i]
		if !n.looked {
			n.seen, n.seenOwner = 0, 0
		}
	}
	return m
}

func searchRights(r rightsRules, b rightsBounds, most int) (states int, broken string, steps []string) {
	first := rightsModel{slack: b.slack, owner: 1}
	first.nodes[taker].lease = leaseLasts
	first.nodes[owner] = rightsNode{lease: leaseLasts, claim: kHeld, runs: true, news: true} // it runs on a
	seen := map[rightsModel]struct{}{first: {}}
	queue, parents, bad := []rightsModel{first}, []int32{-1}, -1
	for i := 0; i < len(queue) && bad < 0 && len(queue) < most; i++ {
		queue[i].successors(r, b, func(_ string, next rightsModel) {
			next = next.normal()
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
		found := ""
		queue[parents[i]].successors(r, b, func(what string, next rightsModel) {
			if found == "" && next.normal() == queue[i] {
				found = what
			}
		})
		steps = append([]string{found}, steps...)
	}
	return len(queue), broken, steps
}

// By the rules as they are never do both run it, in whatever order, and though clocks differ by a sixth.
func TestRightsModel(t *testing.T) {
	b, most := rightsBounds{versions: 3, slack: 1}, 4_000_000
	if os.Getenv("HIBERNATE_MODEL") != "" {
		b, most = rightsBounds{versions: 5, slack: 1}, 60_000_000
	}
	states, broken, steps := searchRights(rightsRules{}, b, most)
	t.Logf("%+v: %d states", b, states)
	if states >= most {
		t.Errorf("%+v: more than %d states", b, most)
	}
	if broken != "" {
		t.Errorf("%s:\n\t%s", broken, strings.Join(steps, "\n\t"))
	}
}

// With any of them left out they do.
func TestRightsModelFinds(t *testing.T) {
	for _, c := range []struct {
		what string
		r    rightsRules
		b    rightsBounds
	}{
		{"no margin between the lease's end and death", rightsRules{deadAfter: leaseLasts}, rightsBounds{versions: 3, slack: 1}},
		{"a lease counts from its confirmation", rightsRules{leaseConfirmed: true}, rightsBounds{versions: 3}},
		{"a claim outlives its lease", rightsRules{oldTerms: true}, rightsBounds{versions: 3}},
		{"a node is judged before the head is read", rightsRules{judgeFirst: true}, rightsBounds{versions: 4}},
		{"a claim isn't bound to the head that was read", rightsRules{unbound: true}, rightsBounds{versions: 3}},
		{"a release without an answer is forgotten", rightsRules{releaseAsMade: true}, rightsBounds{versions: 3}},
		{"who has yielded goes on as if it had not", rightsRules{yieldKeeps: true}, rightsBounds{versions: 3}},
		{"what runs is yielded", rightsRules{yieldRuns: true}, rightsBounds{versions: 3}},
		{"the owner is asked before the head is read", rightsRules{yieldFirst: true}, rightsBounds{versions: 4}},
	} {
		states, broken, steps := searchRights(c.r, c.b, 20_000_000)
		if broken == "" {
			t.Errorf("%s: nothing is found in %d states", c.what, states)
			continue
		}
		t.Logf("%s: %s, in %d of %d states:\n\t%s", c.what, broken, len(steps), states, strings.Join(steps, "\n\t"))
	}
}
