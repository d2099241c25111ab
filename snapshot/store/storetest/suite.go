// Package storetest compares a store with the contract of package store: one suite for all kinds.
//
//	func TestContract(t *testing.T) {
//		storetest.Run(t, storetest.Kind{Open: func(t *testing.T) store.Store { … }})
//	}
//
// It also starts real S3 servers for the tests that need one: see Versitygw, Seaweedfs.
package storetest

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// deadline is for one check: far more than any takes.
const deadline = 5 * time.Minute

// Kind is what is tested.
type Kind struct {
	// Open opens a store onto the same objects each time it is called in one test, as another process would. Several are
	// used at once. The suite closes them.
	Open func(t *testing.T) store.Store
	// Busy is for stores that may answer ErrUnavailable to a writer beside others, and whose refusal of a large object may be
	// lost since they don't read it: versitygw. What such an answer leaves open the suite then reads, as the contract wants it.
	Busy bool
	// Few makes the suite write fewer objects where each costs much.
	Few bool
}

// check is one point of the contract.
type check struct {
	name string
	run  func(s *suite)
}

var checks = []check{
	{"WhatIsPutIsGot", (*suite).whatIsPutIsGot},
	{"PutReplacesWhole", (*suite).putReplacesWhole},
	{"AbsentIsNotFound", (*suite).absentIsNotFound},
	{"EmptyObjectsAreRefused", (*suite).emptyObjectsAreRefused},
	{"BadNamesAreRefused", (*suite).badNamesAreRefused},
	{"OddNamesWork", (*suite).oddNamesWork},
	{"GetIsBounded", (*suite).getIsBounded},
	{"Ranges", (*suite).ranges},
	{"LargeObjects", (*suite).largeObjects},
	{"PutWhereNothingIs", (*suite).putWhereNothingIs},
	{"PutOverAVersion", (*suite).putOverAVersion},
	{"OneOfManyCreates", (*suite).oneOfManyCreates},
	{"NoUpdateIsLost", (*suite).noUpdateIsLost},
	{"ReadersSeeWholeObjects", (*suite).readersSeeWholeObjects},
	{"DeleteIsIdempotent", (*suite).deleteIsIdempotent},
	{"ListIsCompleteAndInOrder", (*suite).listIsCompleteAndInOrder},
	{"ListOfManyPages", (*suite).listOfManyPages},
	{"ListHasTheStoresClock", (*suite).listHasTheStoresClock},
	{"CleaningUpBesideWriters", (*suite).cleaningUpBesideWriters},
	{"EndsWithItsContext", (*suite).endsWithItsContext},
	{"ProbeFindsItHonest", (*suite).probeFindsItHonest},
}

// Run runs the suite. Each test works below a prefix of its own, and leaves nothing there.
func Run(t *testing.T, kind Kind) {
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), deadline)
			defer cancel()
			s := &suite{T: t, ctx: ctx, kind: kind, at: "t" + random() + "/"}
			s.store = s.open()
			c.run(s)
			s.sweep()
		})
	}
}

type suite struct {
	*testing.T
	ctx   context.Context
	kind  Kind
	at    string // the prefix of all names of this test
	store store.Store
}

// open opens one more store.
func (s *suite) open() store.Store {
	s.Helper()
	opened := s.kind.Open(s.T)
	s.Cleanup(func() {
		if err := opened.Close(); err != nil {
			s.Error("close:", err)
		}
	})
	return opened
}

// sweep removes what the test has left.
func (s *suite) sweep() {
	s.Helper()
	for _, o := range s.list("") {
		if err := s.store.Delete(s.ctx, o.Name); err != nil {
			s.Error("delete:", err)
		}
	}
	if left := s.list(""); len(left) > 0 {
		s.Error("there is still", left)
	}
}

func (s *suite) put(name string, body []byte, cond store.Condition) store.Version {
	s.Helper()
	version, err := s.store.Put(s.ctx, s.at+name, body, cond)
	if err != nil {
		s.Fatalf("put %s: %v", name, err)
	}
	if version == "" {
		s.Fatalf("put %s: no version, which would be no condition at all", name)
	}
	return version
}

func (s *suite) get(name string) ([]byte, store.Info) {
	s.Helper()
	body, info, err := s.store.Get(s.ctx, s.at+name, 1<<30)
	if err != nil {
		s.Fatalf("get %s: %v", name, err)
	}
	return body, info
}

func (s *suite) list(prefix string) []store.Info {
	s.Helper()
	found, _, err := s.store.List(s.ctx, s.at+prefix)
	if err != nil {
		s.Fatalf("list %s: %v", prefix, err)
	}
	return found
}

func random() string {
	b := make([]byte, 6)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// noise are n bytes that no compression shortens.
func noise(n int) []byte {
	b := make([]byte, n)
	rand.Read(b)
	return b
}
