package durable

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
	"github.com/hibernate-runtime/hibernate/snapshot/store/memstore"
)

// flaky makes a node lose answers, fail requests, and at some time die, with its last request made or not.
func flaky(n node, r *rand.Rand) {
	var mu sync.Mutex
	dies, dead := r.IntN(120), false
	n.store.Before(func(memstore.Op, string) memstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		died := errors.New("the node has died")
		switch dies--; {
		case dead:
			return memstore.Fault{Kind: memstore.Fail, Err: died}
		case dies < 0:
			dead = true
			if r.IntN(2) == 0 {
				return memstore.Fault{Kind: memstore.LoseAnswer}
			}
			return memstore.Fault{Kind: memstore.Fail, Err: died}
		case r.IntN(20) == 0:
			return memstore.Fault{Kind: memstore.LoseAnswer}
		case r.IntN(20) == 0:
			return memstore.Fault{Kind: memstore.Fail}
		}
		return memstore.Fault{}
	})
}

// Nodes die anywhere and are followed by others, answers are lost, collectors and readers are at work, time passes: what was
// committed is there, a reader with a lease reads on, and at the end nothing is left that nothing needs.
func TestChaos(t *testing.T) {
	runs := 15
	if n, err := strconv.Atoi(os.Getenv("HIBERNATE_CHAOS")); err == nil {
		runs = n
	}
	for seed := range runs {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { chaos(t, uint64(seed)) })
	}
}

func chaos(t *testing.T, seed uint64) {
	w := newWorld(t)
	r := rand.New(rand.NewPCG(seed, 1))
	few := func(c *Config) { c.Generations = 2 }
	pages := map[uint64]content{} // what was given to Commit, by sequence
	var mu sync.Mutex
	want := func(sequence uint64) content {
		mu.Lock()
		defer mu.Unlock()
		return pages[sequence]
	}

	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 2 {
		own := rand.New(rand.NewPCG(seed, uint64(10+i)))
		wg.Go(func() {
			for ctx.Err() == nil {
				n := w.node("collector", few)
				flaky(n, own)
				w.pass(time.Duration(own.IntN(15)) * time.Minute)
				_, err := n.Collect(ctx, CollectOptions{})
				if errors.Is(err, ErrInconsistent) {
					t.Error(err)
				}
			}
		})
	}
	wg.Go(func() {
		own := rand.New(rand.NewPCG(seed, 20))
		for ctx.Err() == nil {
			n := w.node("reader", few)
			h, err := n.Head(ctx)
			if err != nil || len(h.Generations) == 0 {
				continue
			}
			g := h.Generations[own.IntN(len(h.Generations))]
			began := w.now()
			rd, err := n.Open(ctx, g.Sequence, OpenOptions{Lease: true})
			if errors.Is(err, ErrNone) || ctx.Err() != nil {
				continue
			}
			if err == nil {
				f, _ := rd.File("pages.img")
				p := make([]byte, f.Size())
				if _, err = f.ReadAt(p, 0); err == nil && string(p) != string(want(g.Sequence)["pages.img"]) {
					err = errors.New("other bytes")
				}
				rd.Close()
			}
			if err != nil && ctx.Err() == nil && w.now().Sub(began) < time.Hour/2 {
				t.Errorf("a reader with a lease: generation %d: %v", g.Sequence, err)
			}
		}
	})

	// The owners, one after the other; each goes on with what the one before has committed.
	var committed, sequence uint64
	for sequence < 12 {
		n := w.node("owner", few)
		flaky(n, r)
		h, err := n.Acquire(ctx, Claim{TakeOver: true})
		for err == nil && sequence < 12 {
			sequence++
			c := content{"pages.img": memory(20+r.IntN(200), uint64(r.IntN(3)))}
			mu.Lock()
			pages[sequence] = c
			mu.Unlock()
			if _, err = n.Commit(ctx, w.image(h.Epoch, sequence, c), CommitOptions{}); err == nil {
				committed = sequence
			}
		}
		if errors.Is(err, ErrStale) || errors.Is(err, ErrDiverged) || errors.Is(err, store.ErrRefused) {
			t.Error(err)
		}
		looked, err := w.node("judge", few).Head(t.Context())
		if err != nil && (committed > 0 || !errors.Is(err, ErrNone)) {
			t.Fatal(err)
		}
		newest, _ := looked.Newest()
		if newest.Sequence < committed {
			t.Fatalf("generation %d was committed, and the newest is %d", committed, newest.Sequence)
		}
	}
	stop()
	wg.Wait()
	judge := w.node("judge", few)
	h, err := judge.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range h.Generations[:min(2, len(h.Generations))] {
		judge.has(t, g.Sequence, want(g.Sequence))
	}
	for range 2 {
		w.pass(26 * time.Hour)
		if _, err := judge.Collect(t.Context(), CollectOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.pass(2 * time.Hour)
	if _, err := judge.Collect(t.Context(), CollectOptions{}); err != nil {
		t.Fatal(err)
	}
	needed := map[string]bool{}
	h, err = judge.Head(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range h.Generations {
		m, err := judge.manifest(t.Context(), judge.keys, g)
		if err != nil {
			t.Fatal(err)
		}
		mark(needed, g.Manifest, m)
	}
	for _, name := range w.data("") {
		if !needed[name] && !strings.HasPrefix(name, listPrefix) {
			t.Errorf("left over: %s", name)
		}
	}
	if len(h.Generations) > 2 {
		t.Errorf("%d generations", len(h.Generations))
	}
}
