package durable

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// A contact is believed when who has the key has made it, for the very node that tells it.
func TestContact(t *testing.T) {
	tier := func(key byte, node string) *Tier {
		t.Helper()
		tier, err := New(Config{
			Store: memstore.New(), Keys: Keyring{Current: newFileKey([]byte(strings.Repeat(string(key), 32)))}, Node: node, Incarnation: strings.Repeat("a", 32),
		})
		if err != nil {
			t.Fatal(err)
		}
		return tier
	}
	want := Contact{Address: "10.1.2.3:9477", Key: strings.Repeat("0", 64)}
	a := tier('k', "a")
	fact, err := a.Seal(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	node := Node{Name: "a", Incarnation: strings.Repeat("a", 32), Facts: map[string]string{ContactFact: fact}}
	b := tier('k', "b")
	if got, err := b.Contact(t.Context(), node); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	changed := func(change func(n *Node)) Node {
		n := node
		n.Facts = maps.Clone(n.Facts)
		change(&n)
		return n
	}
	replaced := func(old, now string) func(n *Node) {
		return func(n *Node) { n.Facts[ContactFact] = strings.ReplaceAll(fact, old, now) }
	}
	forged, err := tier('x', "a").Seal(t.Context(), want)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		node Node
		want error
	}{
		"another address":     {changed(replaced("10.1.2.3", "10.6.6.6")), ErrForeign},
		"another key":         {changed(replaced(want.Key, strings.Repeat("1", 64))), ErrForeign},
		"another node":        {changed(func(n *Node) { n.Name = "c" }), ErrForeign},
		"another incarnation": {changed(func(n *Node) { n.Incarnation = strings.Repeat("b", 32) }), ErrForeign},
		"no key of the tier":  {changed(func(n *Node) { n.Facts[ContactFact] = forged }), ErrWrongKey},
		"a later version":     {changed(replaced(`"version":1`, `"version":2`)), ErrNoContact},
		"none":                {changed(func(n *Node) { n.Facts = nil }), ErrNoContact},
	} {
		if got, err := b.Contact(t.Context(), c.node); !errors.Is(err, c.want) || got != (Contact{}) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}
