package network_test

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

// told begins to watch a link's changes; each is a value.
func told(t *testing.T, l *network.Link) <-chan struct{} {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changes, done := make(chan struct{}, 64), make(chan error, 1)
	go func() {
		done <- l.Changes(ctx, func() {
			select {
			case changes <- struct{}{}:
			default:
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		must(t, <-done)
	})
	return changes
}

// silent are breaks inside I, where nobody listens, and of the fast path, without which packets take the other way.
func silent(name, rung string) bool { return name == "inner kernel not mute" || rung == "fast path" }

// What somebody breaks is told, and mended without a word to the sandbox.
func TestChangesAreToldAndMended(t *testing.T) {
	t.Parallel()
	for _, b := range breaks {
		if silent(b.name, b.rung) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			w, l, _ := awake(t)
			changes := told(t, l)
			sure(t, w, changes)
			b.do(t, w)
			select {
			case <-changes:
			case <-time.After(10 * time.Second):
				t.Fatal("nothing is told")
			}
			repaired := false
			for _, r := range l.Mend(t.Context(), true) {
				if !r.OK {
					t.Errorf("not mended: %+v", r)
				}
				repaired = repaired || r.Name == b.rung && r.Repaired
			}
			if !repaired {
				t.Errorf("the rung %s was not repaired", b.rung)
			}
			if lost, err := l.Lost(); lost || err != nil {
				t.Errorf("the sandbox's end counts as lost: %v", err)
			}
			c, err := w.dial(echoPort, answerTime)
			must(t, err)
			defer c.Close()
			must(t, say(c, "mended", answerTime))
		})
	}
}

// sure waits until changes are heard, by changes of another's that harm nothing.
func sure(t *testing.T, w *world, changes <-chan struct{}) {
	t.Helper()
	c := nft(t, w.pod)
	other := &nftables.Table{Name: "other", Family: nftables.TableFamilyINet}
	eventually(t, "changes are heard", func() bool {
		c.AddTable(other)
		c.DelTable(other)
		must(t, c.Flush())
		select {
		case <-changes:
			return true
		case <-time.After(20 * time.Millisecond):
			return false
		}
	})
	for len(changes) > 0 {
		<-changes
	}
}

// The gate's own moves, one a transition, are no reason to look.
func TestOwnMovesOfTheGateAreNotTold(t *testing.T) {
	w, l, _ := awake(t)
	changes := told(t, l)
	sure(t, w, changes)
	for _, g := range []network.Gate{held(echoPort), opened, parked, opened} {
		must(t, l.SetGate(t.Context(), g))
	}
	select {
	case <-changes:
		t.Error("they are told")
	case <-time.After(200 * time.Millisecond):
	}
}

// A link that is deleted is made anew; the sandbox's own end stays lost until there is another sandbox.
func TestDeletedLinkIsMadeAnew(t *testing.T) {
	w, l, _ := awake(t)
	must(t, l.PrepareInner(t.Context()))
	changes := told(t, l)
	sure(t, w, changes)
	h := handle(t, w.pod)
	must(t, h.LinkDel(get(t, h, "hib0")))
	<-changes
	for _, connected := range []bool{true, false} {
		for _, r := range l.Mend(t.Context(), connected) {
			if !r.OK || connected != r.Repaired && r.Name == "link" {
				t.Errorf("connected %v: %+v", connected, r)
			}
		}
		if lost, err := l.Lost(); !lost || err != nil {
			t.Errorf("its end doesn't count as lost: %v", err)
		}
	}
	must(t, l.PrepareInner(t.Context()))
	if lost, err := l.Lost(); lost || err != nil {
		t.Errorf("the new end counts as lost: %v", err)
	}
}

// Whoever can't watch all watches nothing: no descriptor is left.
func TestChangesThatCantBeWatched(t *testing.T) {
	_, l, _ := awake(t)
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		must(t, err)
		return len(all) - 1 // without the one that reads it
	}
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	var before int
	var err error
	for range 10 { // what an earlier test has left may close in this very moment, and then there is room for both
		for filled := false; !filled; { // the numbers that are free lie between others
			f, err := os.Open("/dev/null")
			must(t, err)
			defer f.Close()
			filled = int(f.Fd()) == open()-1
		}
		before = open()
		few := unix.Rlimit{Cur: uint64(before) + 2, Max: limit.Max} // one for the first watch, and one to get there
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &few))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		err = l.Changes(ctx, func() {})
		cancel()
		must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
		if err != nil {
			break
		}
	}
	if !errors.Is(err, unix.EMFILE) {
		t.Fatal(err)
	}
	eventually(t, "no descriptor is left", func() bool { return open() == before })
}
