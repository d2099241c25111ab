package durable

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

const anHour = time.Hour

func (w *world) pulse(name, incarnation string) (*Pulse, *memstore.Store) {
	n := w.node(name)
	return n.t.Pulse(incarnation, anHour), n.store
}

func (w *world) sighting(t *testing.T, name string) Sighting {
	t.Helper()
	s, err := w.node("looker").t.Node(t.Context(), name)
	if err != nil || s.Err != nil {
		t.Fatal(err, s.Err)
	}
	return s
}

// Each beat is another version, and an answer that is lost makes it neither fail nor count twice.
func TestBeat(t *testing.T) {
	w := newWorld(t)
	p, s := w.pulse("a", NewIncarnation())
	object := nodeObject("a")
	for i, fault := range []memstore.Fault{
		{}, {Op: memstore.Put, Name: object, Kind: memstore.LoseAnswer}, {}, {Op: memstore.Put, Name: object, Kind: memstore.Fail},
	} {
		before := w.bucket.Body(object)
		s.Script(fault)
		err := p.Beat(t.Context(), map[string]string{HostFact: "h"})
		if (err == nil) != (fault.Kind != memstore.Fail) {
			t.Fatalf("beat %d: %v", i, err)
		}
		if changed := string(before) != string(w.bucket.Body(object)); changed != (err == nil) {
			t.Fatalf("beat %d: changed %v", i, changed)
		}
	}
	if err := p.Beat(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if n := w.sighting(t, "a"); n.Counter != 4 || n.Name != "a" || n.TakeOver != anHour || n.Facts != nil {
		t.Errorf("%+v", n)
	}
	// The answer is lost, and so is the look at it: the next beat finds its own.
	s.Script(memstore.Fault{Op: memstore.Put, Name: object, Kind: memstore.LoseAnswer}, memstore.Fault{Op: memstore.Get, Name: object, Kind: memstore.Fail})
	if err := p.Beat(t.Context(), nil); !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
	if err := p.Beat(t.Context(), nil); err == nil || errors.Is(err, ErrNodeTaken) {
		t.Errorf("it doesn't know its own: %v", err)
	}
	if err := p.Beat(t.Context(), nil); err != nil {
		t.Error(err)
	}
	// Somebody deletes it.
	w.bucket.Alter(object, func([]byte) []byte { return nil })
	for range 2 {
		_ = p.Beat(t.Context(), nil)
	}
	if n := w.sighting(t, "a"); n.Counter != 7 {
		t.Errorf("counter %d", n.Counter)
	}
}

// A daemon that is started again is the same node; what the one before has sent late doesn't disturb it. Another machine does, and
// both are named.
func TestBeatOfAnother(t *testing.T) {
	w := newWorld(t)
	incarnation := NewIncarnation()
	first, _ := w.pulse("a", incarnation)
	facts := map[string]string{HostFact: "left"}
	again, _ := w.pulse("a", incarnation)
	for _, err := range []error{first.Beat(t.Context(), facts), again.Beat(t.Context(), facts)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	late, s := w.pulse("a", incarnation)
	s.Script(memstore.Fault{Op: memstore.Put, Do: func() {
		if err := again.Beat(t.Context(), facts); err != nil {
			t.Error(err)
		}
	}})
	if err := late.Beat(t.Context(), facts); err != nil {
		t.Errorf("a late write of the process before: %v", err)
	}
	// A copy of the data directory: whoever beats is told, and doesn't take it back by itself.
	for range 3 {
		if err := again.Beat(t.Context(), facts); !errors.Is(err, ErrNodeTaken) {
			t.Errorf("%v", err)
		}
	}

	stranger, _ := w.pulse("a", NewIncarnation())
	var taken *NodeTakenError
	err := stranger.Beat(t.Context(), map[string]string{HostFact: "right"})
	if !errors.As(err, &taken) || !strings.Contains(err.Error(), incarnation) || !strings.Contains(err.Error(), "left") || !strings.Contains(err.Error(), stranger.node.Incarnation) {
		t.Fatalf("%v", err)
	}
	// It has been silent for long enough; but it wasn't.
	if err := late.Beat(t.Context(), facts); err != nil {
		t.Fatal(err)
	}
	if err := stranger.Displace(t.Context(), taken, nil); !errors.As(err, &taken) {
		t.Fatalf("%v", err)
	}
	if err := stranger.Displace(t.Context(), taken, nil); err != nil {
		t.Fatal(err)
	}
	if err := late.Beat(t.Context(), facts); !errors.Is(err, ErrNodeTaken) {
		t.Errorf("the displaced one goes on: %v", err)
	}
	if err := stranger.Beat(t.Context(), nil); err != nil {
		t.Error(err)
	}
}

// All nodes are told of, what can't be read, too; and only what has changed is read.
func TestNodes(t *testing.T) {
	w := newWorld(t)
	long := strings.Repeat("x", 200)
	names := []string{"a", "b.example.org", "~c", "with space", long, "a/b/c"}
	pulses := map[string]*Pulse{}
	for _, name := range names {
		pulses[name], _ = w.pulse(name, NewIncarnation())
		if err := pulses[name].Beat(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
	}
	w.bucket.Alter(nodesPrefix+"broken", func([]byte) []byte { return []byte("{") })
	looker := w.node("looker")
	reads := 0
	looker.store.Before(func(op memstore.Op, _ string) memstore.Fault {
		if op == memstore.Get {
			reads++
		}
		return memstore.Fault{}
	})
	first, err := looker.t.Nodes(t.Context(), nil)
	if err != nil || len(first) != len(names)+1 || reads != len(names)+1 || first[nodesPrefix+"broken"].Err == nil {
		t.Fatalf("%d nodes, %d reads, %v", len(first), reads, err)
	}
	for _, name := range names {
		if s := first[NodeObject(name)]; s.Name != name || s.Err != nil {
			t.Errorf("%q: %+v", name, s)
		}
	}
	if err := pulses["a"].Beat(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	reads = 0
	second, err := looker.t.Nodes(t.Context(), first)
	if err != nil || reads != 1 || !slices.Equal(slices.Sorted(maps.Keys(first)), slices.Sorted(maps.Keys(second))) {
		t.Fatalf("%d nodes, %d reads, %v", len(second), reads, err)
	}
	for name := range second {
		if same := second[name].Same(first[name]); same != (name != nodesPrefix+"a") {
			t.Errorf("%s: same %v", name, same)
		}
	}
	looker.store.Script(memstore.Fault{Op: memstore.List, Kind: memstore.Fail})
	if _, err := looker.t.Nodes(t.Context(), second); err == nil {
		t.Error("a list that fails says who is there")
	}
	if s, err := looker.t.Node(t.Context(), "nobody"); err != nil || s.Version != "" {
		t.Errorf("%+v, %v", s, err)
	}
}

func TestNodeFacts(t *testing.T) {
	w := newWorld(t)
	p, _ := w.pulse("a", NewIncarnation())
	many := map[string]string{}
	for i := range maxFacts + 1 {
		many[fmt.Sprint(i)] = ""
	}
	half := map[string]string{}
	for i := range 10 {
		half[fmt.Sprint(i)] = strings.Repeat("v", maxFact-1)
	}
	for what, facts := range map[string]map[string]string{"many": many, "long": {"a": strings.Repeat("x", maxFact)}, "unnamed": {"": "x"}, "too much": half} {
		if err := p.Beat(t.Context(), facts); err == nil {
			t.Errorf("%s facts are written", what)
		}
	}
	delete(many, "0")
	if err := p.Beat(t.Context(), many); err != nil {
		t.Error(err)
	}
	if n := w.sighting(t, "a"); !maps.Equal(n.Facts, many) {
		t.Errorf("%+v", n)
	}
}

// A claim over what was seen fails when anything was written since, and is made once, whatever the answers.
func TestTake(t *testing.T) {
	w := newWorld(t)
	a, b := w.node("a"), w.node("b")
	seen, err := a.Look(t.Context())
	if err != nil || seen.Revision != 0 {
		t.Fatalf("%+v, %v", seen, err)
	}
	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Kind: memstore.LoseAnswer})
	h, err := a.Take(t.Context(), seen, Claim{})
	if err != nil || h.Epoch != 1 || !a.Mine(h) || b.Mine(h) {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := a.Take(t.Context(), seen, Claim{}); !errors.Is(err, ErrMoved) {
		t.Errorf("%v", err)
	}
	a.commit(t, w.image(1, 1, checkpoint(memory(5, 1)))) // under the claim

	old, err := b.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), old, Claim{}); !errors.Is(err, ErrOwned) {
		t.Errorf("%v", err)
	}
	// The owner says once more that it is there, after b has found it dead: b must look again.
	if _, err := a.Confirm(t.Context(), h.Owner.Claim); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(t.Context(), old, Claim{TakeOver: true}); !errors.Is(err, ErrMoved) {
		t.Errorf("a claim that was confirmed meanwhile is taken over: %v", err)
	}
	old, _ = b.Look(t.Context())
	if h, err = b.Take(t.Context(), old, Claim{TakeOver: true}); err != nil || h.Epoch != 2 || h.Owner.Node != "b" {
		t.Fatalf("%+v, %v", h, err)
	}
	if _, err := a.Confirm(t.Context(), old.Owner.Claim); !errors.Is(err, ErrFenced) {
		t.Errorf("%v", err)
	}
	if err := b.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if seen, err = a.Look(t.Context()); err != nil || seen.Last != "b" || seen.Owner != nil {
		t.Errorf("%+v, %v", seen, err)
	}
	// The answer is lost, and before anybody looks somebody else changes what doesn't concern the claim.
	a.store.Script(memstore.Fault{Op: memstore.Put, Name: headObject, Kind: memstore.LoseAnswer}, memstore.Fault{Op: memstore.Get, Name: headObject, Do: func() {
		if err := b.Pin(t.Context(), 1, true); err != nil {
			t.Error(err)
		}
	}})
	if h, err = a.Take(t.Context(), seen, Claim{}); err != nil || h.Epoch != 3 || !h.Generations[0].Pinned {
		t.Errorf("%+v, %v", h, err)
	}
	w.bucket.Alter(headObject, func([]byte) []byte { return nil })
	if _, err := a.Look(t.Context()); !errors.Is(err, ErrRolledBack) {
		t.Errorf("%v", err)
	}
}

// A release that is still on its way when its answer is given up can't be made any more once the claim was confirmed.
func TestConfirmStopsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t)
	a := w.owner("a")
	h, _ := a.Head(t.Context())
	claim := h.Owner.Claim
	seen, err := a.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	release := seen.clone()
	release.State, release.Owner = Asleep, nil
	if _, err := a.Confirm(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	if _, won, err := a.swap(t.Context(), release, seen.version); won || err != nil {
		t.Errorf("it comes through: %v, %v", won, err)
	}
}

// A node's object is read or refused, whatever it is, and what was read can be written.
func FuzzNode(f *testing.F) {
	n := Node{Name: "a", Incarnation: NewIncarnation(), Nonce: NewIncarnation(), Counter: 1, TakeOver: time.Minute, Facts: map[string]string{"a": "b"}}
	data, err := encodeNode(n)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":"hibernate.node","version":1,"body":{}}`))
	f.Add([]byte(`{"format":"hibernate.node","version":2,"body":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > maxNode {
			return
		}
		n, err := parseNode(nodeObject("a"), data)
		if err != nil {
			if !errors.Is(err, snapshot.ErrCorrupt) && !errors.Is(err, ErrForeign) {
				t.Fatalf("%v", err)
			}
			return
		}
		again, err := encodeNode(n)
		if err != nil {
			return // escapes make it longer
		}
		if m, err := parseNode(nodeObject("a"), again); err != nil || m.Nonce != n.Nonce || m.Counter != n.Counter || !maps.Equal(m.Facts, n.Facts) {
			t.Fatalf("%+v, %v", m, err)
		}
	})
}
