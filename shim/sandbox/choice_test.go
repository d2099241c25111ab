package sandbox

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// TestChoice is the table of what a wake restores, or asks for next.
func TestChoice(t *testing.T) {
	damaged := &snapshot.CorruptError{File: "pages.img", Chunk: 3, Reason: "wrong"}
	away, refused, none, noStore, spoilt := &pages.Error{Class: pages.Unavailable, Message: "away"}, &pages.Error{Class: pages.Refused, Message: "not the key"},
		&pages.Error{Class: pages.None, Message: "nothing there"}, &pages.Error{Class: pages.NoStore, Message: "no store"}, &pages.Error{Class: pages.Corrupt, Message: "spoilt"}
	at := func(list ...uint64) (all []version) {
		for _, s := range list {
			all = append(all, version{1, s})
		}
		return all
	}
	for _, c := range []struct {
		what string
		is   survey
		want string
	}{
		{"the node has the newest", survey{newest: 5, local: version{0, 5}, here: true}, "local"},
		{"the node has a newer one than is known of", survey{newest: 4, local: version{0, 5}, here: true}, "local"},
		{"damaged", survey{newest: 5, local: version{0, 5}, localBad: damaged}, "ask"},
		{"missing", survey{newest: 5, localBad: snapshot.ErrNone}, "ask"},
		{"an older one than is known of", survey{newest: 6, local: version{0, 5}, here: true}, "ask"},

		{"the store has it", survey{newest: 5, localBad: damaged, asked: true, stored: at(5, 4, 3)}, "store 5"},
		{"the store has a newer one", survey{newest: 6, local: version{1, 5}, here: true, asked: true, stored: at(6, 5)}, "store 6"},
		{"both have it", survey{newest: 5, local: version{1, 5}, here: true, asked: true, stored: at(5, 4)}, "local"},
		{"the node's is newer than the store's", survey{newest: 5, local: version{1, 5}, here: true, asked: true, stored: at(4)}, "local"},
		{"another epoch wins", survey{newest: 6, local: version{1, 6}, here: true, asked: true, stored: []version{{2, 6}, {1, 5}}}, "store 6"},
		{"they differ", survey{newest: 5, local: version{1, 5}, here: true, asked: true, stored: at(5), differs: true}, "stop: neither is restored"},
		{"they differ, and the node's is damaged", survey{newest: 5, local: version{1, 5}, localBad: damaged, asked: true, stored: at(5), differs: true}, "stop: neither is restored"},

		{"only an older one", survey{newest: 5, localBad: damaged, asked: true, stored: at(4, 3)}, "fail: wake --from 4"},
		{"only an older one, and that is allowed", survey{newest: 5, localBad: damaged, asked: true, stored: at(4, 3), older: true}, "store 4 older"},
		{"only an older one on the node", survey{newest: 6, local: version{0, 5}, here: true, asked: true, storedErr: none}, "fail: snapshot 5 is there, and is older"},
		{"only an older one on the node, and that is allowed", survey{newest: 6, local: version{0, 5}, here: true, asked: true, storedErr: none, older: true}, "local older"},
		{"the store's newest is spoilt", survey{newest: 5, localBad: damaged, asked: true, stored: at(5, 4), spoilt: map[uint64]error{5: spoilt}}, "fail: snapshot 5 in the store: spoilt"},
		{"the store's newest is spoilt, and older is allowed", survey{newest: 5, localBad: damaged, asked: true, stored: at(5, 4), spoilt: map[uint64]error{5: spoilt}, older: true}, "store 4 older"},
		{"all are spoilt", survey{newest: 5, localBad: damaged, asked: true, stored: at(5, 4), spoilt: map[uint64]error{5: spoilt, 4: spoilt}, older: true}, "fail: snapshot 4 in the store: spoilt"},

		{"the store is away", survey{newest: 5, localBad: damaged, asked: true, storedErr: away}, "fail: away"},
		{"it has nothing", survey{newest: 5, localBad: damaged, asked: true, storedErr: none}, "fail: nothing there"},
		{"there is none", survey{newest: 5, localBad: damaged, asked: true, storedErr: noStore}, "fail: pages.img"},
		{"it refuses", survey{newest: 5, localBad: damaged, asked: true, storedErr: refused, older: true}, "stop: not the key"},
		{"it refuses, and an older one is on the node", survey{newest: 6, local: version{0, 5}, here: true, asked: true, storedErr: refused, older: true}, "stop: not the key"},

		{"by request, the node has it", survey{want: 5, newest: 5, local: version{0, 5}, here: true}, "local"},
		{"by request, the node has an older one", survey{want: 4, newest: 5, local: version{0, 4}, here: true}, "local older"},
		{"by request, it is elsewhere", survey{want: 3, newest: 5, local: version{0, 5}, here: true}, "ask"},
		{"by request, the store has it", survey{want: 3, newest: 5, local: version{0, 5}, here: true, asked: true, stored: at(5, 4, 3)}, "store 3 older"},
		{"by request, the newest of the store", survey{want: 5, newest: 5, localBad: damaged, asked: true, stored: at(5)}, "store 5"},
		{"by request, nobody has it", survey{want: 2, newest: 5, local: version{0, 5}, here: true, asked: true, stored: at(5, 4)}, "fail: the store has 5, 4, the node has 5"},
		{"by request, it is spoilt: no other one instead", survey{want: 4, newest: 5, asked: true, stored: at(5, 4), spoilt: map[uint64]error{4: spoilt}, older: true}, "fail: spoilt"},
		{"by request, the store refuses", survey{want: 4, newest: 5, asked: true, storedErr: refused}, "stop: not the key"},
	} {
		if got := c.is.choose(); !isChoice(got, c.want) {
			t.Errorf("%s: %s, want %s", c.what, toldAs(got), c.want)
		}
	}
}

func toldAs(c choice) string {
	var text string
	switch {
	case c.ask:
		text = "ask"
	case c.local:
		text = "local"
	case c.sequence != 0:
		text = fmt.Sprintf("store %d", c.sequence)
	case c.stop:
		return "stop: " + c.err.Error()
	default:
		return "fail: " + c.err.Error()
	}
	if c.older {
		text += " older"
	}
	return text
}

func isChoice(c choice, want string) bool {
	kind, part, isError := strings.Cut(want, ": ")
	if !isError {
		return toldAs(c) == want
	}
	return c.err != nil && !c.ask && !c.local && c.sequence == 0 && c.stop == (kind == "stop") && strings.Contains(c.err.Error(), part)
}

// What is wrong with the node's own snapshot decides what becomes of it, whatever else is.
func TestFailureNamesTheCause(t *testing.T) {
	err := survey{newest: 5, localBad: &snapshot.CorruptError{File: "pages.img", Chunk: 3}, asked: true, storedErr: &pages.Error{Class: pages.Corrupt}}.choose().err
	if !errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("%v", err)
	}
	err = survey{newest: 5, localBad: snapshot.ErrNone, asked: true, storedErr: &pages.Error{Class: pages.Corrupt}}.choose().err
	if errors.Is(err, snapshot.ErrCorrupt) {
		t.Errorf("of the store's: %v", err)
	}
}
