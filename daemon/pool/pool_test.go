package pool

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"
)

// Twenty claimants and fifteen members: nobody is claimed twice, nobody is left, and the others are told.
func TestTake(t *testing.T) {
	p := Of(t.TempDir(), "default", "base")
	if _, err := p.Take(); !errors.Is(err, ErrEmpty) {
		t.Fatal(err)
	}
	const members, claimants = 15, 20
	for i := range members {
		if err := p.Put(Member{ID: fmt.Sprint("m", i), Made: time.Unix(int64(i), 0)}); err != nil {
			t.Fatal(err)
		}
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	taken, empty := make(map[string]int), 0
	start := make(chan struct{})
	for range claimants {
		wg.Go(func() {
			<-start
			m, err := p.Take()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ErrEmpty):
				empty++
			case err != nil:
				t.Error(err)
			default:
				taken[m.ID]++
			}
		})
	}
	close(start)
	wg.Wait()
	if len(taken) != members || empty != claimants-members {
		t.Errorf("%d taken, %d told that there is none: %v", len(taken), empty, taken)
	}
	for id, n := range taken {
		if n != 1 {
			t.Errorf("%s was taken %d times", id, n)
		}
	}
}

func TestMembers(t *testing.T) {
	run := t.TempDir()
	p := Of(run, "default", "base")
	if p == Of(run, "default", "other") || p == Of(run, "other", "base") {
		t.Error("two templates have one pool")
	}
	for i, id := range []string{"b", "a"} {
		if err := p.Put(Member{ID: id, Sequence: 4, Made: time.Unix(int64(i), 0)}); err != nil {
			t.Fatal(err)
		}
	}
	all, err := p.Ready()
	if err != nil || len(all) != 2 || all[0].ID != "b" || all[0].Sequence != 4 {
		t.Fatalf("%+v, %v", all, err)
	}
	m, err := p.Take()
	if err != nil || m.ID != "b" || !p.Known("b") || !p.Known("a") || p.Known("c") {
		t.Errorf("%+v, %v", m, err)
	}
	if mine, err := p.TakeOne(m); mine || err != nil {
		t.Errorf("taken again: %v, %v", mine, err)
	}
	if err := errors.Join(p.Drop(m), p.Drop(m)); err != nil || p.Known("b") {
		t.Error(err)
	}
	if pools, err := All(run); err != nil || len(pools) != 1 || pools[0] != p {
		t.Errorf("%v, %v", pools, err)
	}
	if err := p.Remove(); err != nil || p.Known("a") {
		t.Error(err)
	}
}
