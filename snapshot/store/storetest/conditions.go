package storetest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

func (s *suite) putWhereNothingIs() {
	s.put("x", []byte("first"), store.Condition{Absent: true})
	_, err := s.store.Put(s.ctx, s.at+"x", []byte("second"), store.Condition{Absent: true})
	s.is("put where something is", err, store.ErrExists)
	if body, _ := s.get("x"); string(body) != "first" {
		s.Errorf("%q is there; want what was there first", body)
	}
}

func (s *suite) putOverAVersion() {
	first := s.put("x", []byte("first"), store.Always)
	second := s.put("x", []byte("second"), store.Condition{Version: first})
	if first == second {
		s.Error("other bytes, and the same version")
	}
	_, err := s.store.Put(s.ctx, s.at+"x", []byte("third"), store.Condition{Version: first})
	s.is("put over a version that is gone", err, store.ErrChanged)
	_, err = s.store.Put(s.ctx, s.at+"none", []byte("x"), store.Condition{Version: first})
	s.is("put over a version of what isn't there", err, store.ErrChanged)
	_, err = s.store.Put(s.ctx, s.at+"x", []byte("x"), store.Condition{Version: "no version of anything"})
	s.is("put over a version that never was", err, store.ErrChanged)
	if body, info := s.get("x"); string(body) != "second" || info.Version != second {
		s.Errorf("%q is there, version %q; want the second, %q", body, info.Version, second)
	}
	if err := s.store.Delete(s.ctx, s.at+"x"); err != nil {
		s.Fatal(err)
	}
	_, err = s.store.Put(s.ctx, s.at+"x", []byte("x"), store.Condition{Version: second})
	s.is("put over a version that was deleted", err, store.ErrChanged)
	if found := s.list(""); len(found) > 0 {
		s.Error("there is", found)
	}
}

// together calls do n times at once, each with a store of its own.
func (s *suite) together(n int, do func(i int, st store.Store)) {
	stores := make([]store.Store, n)
	for i := range stores {
		stores[i] = s.open()
	}
	var begin, end sync.WaitGroup
	begin.Add(1)
	for i, st := range stores {
		end.Go(func() {
			begin.Wait()
			do(i, st)
		})
	}
	begin.Done()
	end.Wait()
}

func (s *suite) oneOfManyCreates() {
	const writers = 16
	rounds := 20
	if s.kind.Few {
		rounds = 5
	}
	for round := range rounds {
		name := fmt.Sprintf("%srace/%d", s.at, round)
		var mu sync.Mutex
		var winners []int
		s.together(writers, func(i int, st store.Store) {
			_, err := st.Put(s.ctx, name, fmt.Appendf(nil, "%d of %d", i, round), store.Condition{Absent: true})
			switch {
			case err == nil:
				mu.Lock()
				winners = append(winners, i)
				mu.Unlock()
			case !errors.Is(err, store.ErrExists):
				s.Error("a loser got", err)
			}
		})
		body, _, err := s.store.Get(s.ctx, name, 100)
		if err != nil || len(winners) != 1 || string(body) != fmt.Sprintf("%d of %d", winners[0], round) {
			s.Fatalf("%v won, and %q is there, %v; want one, and its body", winners, body, err)
		}
	}
}

// counter is an object that is changed by comparison: the nonce makes each body new.
type counter struct {
	N     int
	Nonce string
}

func (s *suite) noUpdateIsLost() {
	const writers, each = 8, 10
	start, _ := json.Marshal(counter{Nonce: random()})
	s.put("count", start, store.Always)
	name := s.at + "count"
	s.together(writers, func(_ int, st store.Store) {
		for done := 0; done < each; {
			body, info, err := st.Get(s.ctx, name, 1000)
			var c counter
			if err == nil {
				err = json.Unmarshal(body, &c)
			}
			if err != nil {
				s.Error(err)
				return
			}
			next, _ := json.Marshal(counter{c.N + 1, random()})
			switch _, err := st.Put(s.ctx, name, next, store.Condition{Version: info.Version}); {
			case err == nil:
				done++
			case !errors.Is(err, store.ErrChanged):
				s.Error(err)
				return
			}
		}
	})
	var c counter
	body, _ := s.get("count")
	if err := json.Unmarshal(body, &c); err != nil || c.N != writers*each {
		s.Errorf("%d writers added 1 %d times each, and it is %d (%v)", writers, each, c.N, err)
	}
}

// readersSeeWholeObjects while writers replace it with others, of other lengths, by all ways of writing.
func (s *suite) readersSeeWholeObjects() {
	const writers, readers = 3, 3
	rounds := 30
	if s.kind.Few {
		rounds = 10
	}
	body := func(i int) []byte { return bytes.Repeat([]byte{byte('a' + i)}, 100_000*(i+1)) }
	s.put("x", body(0), store.Always)
	s.together(writers+readers, func(i int, st store.Store) {
		for range rounds {
			if i < writers {
				cond := store.Always
				if i == 0 {
					info, err := st.Stat(s.ctx, s.at+"x")
					if err != nil {
						s.Error(err)
						return
					}
					cond.Version = info.Version
				}
				if _, err := st.Put(s.ctx, s.at+"x", body(i), cond); err != nil && !errors.Is(err, store.ErrChanged) {
					s.Error(err)
					return
				}
				continue
			}
			got, info, err := st.Get(s.ctx, s.at+"x", 1<<20)
			if err != nil {
				s.Error(err)
				return
			}
			if len(got) == 0 || !bytes.Equal(got, body(int(got[0]-'a'))) || info.Size != int64(len(got)) {
				s.Errorf("a reader got %d bytes that no writer wrote so, described as %+v", len(got), info)
				return
			}
		}
	})
}

// cleaningUpBesideWriters: the last object of a place goes while another comes to it.
func (s *suite) cleaningUpBesideWriters() {
	rounds := 50
	if s.kind.Few {
		rounds = 15
	}
	// Two at each place: that it is empty for a moment then happens often.
	s.together(6, func(i int, st store.Store) {
		name := fmt.Sprintf("%sp/%d/%d", s.at, i/2, i)
		for round := range rounds {
			body := fmt.Appendf(nil, "%d", round)
			_, err := st.Put(s.ctx, name, body, store.Condition{Absent: true})
			for s.kind.Busy && errors.Is(err, store.ErrUnavailable) {
				_, err = st.Put(s.ctx, name, body, store.Condition{Absent: true})
			}
			if err != nil && !(s.kind.Busy && errors.Is(err, store.ErrExists)) {
				s.Errorf("put: %v", err)
				return
			}
			if got, _, err := st.Get(s.ctx, name, 100); err != nil || !bytes.Equal(got, body) {
				s.Errorf("get: %q, %v; want %q", got, err, body)
				return
			}
			if err := st.Delete(s.ctx, name); err != nil {
				s.Errorf("delete: %v", err)
				return
			}
		}
	})
}

func (s *suite) probeFindsItHonest() {
	report, err := store.Probe(s.ctx, s.store, s.at)
	if err != nil {
		s.Fatal(err)
	}
	if !report.Honest {
		s.Error("the probe says of its conditional writes:", report.Why)
	}
	if found := s.list(""); len(found) > 0 {
		s.Error("the probe has left", found)
	}
}
