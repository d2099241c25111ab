package storetest

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

func (s *suite) listIsCompleteAndInOrder() {
	if found := s.list(""); len(found) > 0 {
		s.Fatal("an empty place lists", found)
	}
	// In byte order "a-b/x" comes before "a/x": a walk through directories has it the other way.
	names := []string{"a-b/x", "a/x", "a/x-", "a/y/z", "a0/x", "b", "~", "é"}
	for _, name := range slices.Backward(names) {
		s.put(name, []byte(name), store.Always)
	}
	for prefix, want := range map[string][]string{
		"":      names,
		"a/":    {"a/x", "a/x-", "a/y/z"},
		"a":     {"a-b/x", "a/x", "a/x-", "a/y/z", "a0/x"},
		"a/x":   {"a/x", "a/x-"},
		"a/y/":  {"a/y/z"},
		"a/y/z": {"a/y/z"},
		"b":     {"b"},
		"b/":    nil,
		"c":     nil,
		"no/c":  nil,
	} {
		var got []string
		for _, o := range s.list(prefix) {
			name := strings.TrimPrefix(o.Name, s.at)
			got = append(got, name)
			if o.Size != int64(len(name)) {
				s.Errorf("list tells %+v; want %d bytes", o, len(name))
			}
			if o.Version == "" {
				continue
			}
			if info, err := s.store.Stat(s.ctx, o.Name); err != nil || info != o {
				s.Errorf("list tells %+v, and stat %+v, %v", o, info, err)
			}
		}
		if !slices.Equal(got, want) {
			s.Errorf("list %q: %q; want %q", prefix, got, want)
		}
	}
}

// listOfManyPages: S3 servers list a thousand at a time.
func (s *suite) listOfManyPages() {
	n := 1205
	if s.kind.Few {
		n = 205
	}
	const writers = 8
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := w; i < n; i += writers {
				if _, err := s.store.Put(s.ctx, fmt.Sprintf("%smany/%05d", s.at, i), []byte("x"), store.Always); err != nil {
					s.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	found := s.list("many/")
	for i, o := range found {
		if want := fmt.Sprintf("%smany/%05d", s.at, i); o.Name != want {
			s.Fatalf("the %d. of the list is %s; want %s", i, o.Name, want)
		}
	}
	if len(found) != n {
		s.Errorf("listed %d; want %d", len(found), n)
	}
}

func (s *suite) listHasTheStoresClock() {
	before := time.Now().Truncate(time.Second)
	s.put("x", []byte("x"), store.Always)
	found, began, err := s.store.List(s.ctx, s.at)
	if err != nil || len(found) != 1 {
		s.Fatal(found, err)
	}
	// The clock is this machine's for all that are tested here, but for a second that coarse clocks are behind.
	if began.Before(before.Add(-time.Second)) || began.After(time.Now().Add(time.Second)) || began.Nanosecond() != 0 {
		s.Errorf("the listing began at %v; want now, in whole seconds", began)
	}
	if found[0].Modified.After(began.Add(time.Second)) || found[0].Modified.Before(before.Add(-time.Second)) {
		s.Errorf("modified at %v, by a clock that says %v", found[0].Modified, began)
	}
}
