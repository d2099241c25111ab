package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

func (s *suite) whatIsPutIsGot() {
	want := noise(12345)
	version := s.put("a/b", want, store.Always)
	body, info := s.get("a/b")
	if !bytes.Equal(body, want) {
		s.Errorf("got %d bytes that are not the %d that were put", len(body), len(want))
	}
	s.described("get", info, "a/b", int64(len(want)), version)
	info, err := s.store.Stat(s.ctx, s.at+"a/b")
	if err != nil {
		s.Fatal(err)
	}
	s.described("stat", info, "a/b", int64(len(want)), version)
}

// described compares what is told of an object.
func (s *suite) described(by string, info store.Info, name string, size int64, version store.Version) {
	s.Helper()
	if info.Name != s.at+name || info.Size != size || info.Version != version {
		s.Errorf("%s tells %+v; want %s, %d bytes, version %q", by, info, s.at+name, size, version)
	}
	if age := time.Since(info.Modified); age > time.Hour || age < -time.Hour || info.Modified.Nanosecond() != 0 {
		s.Errorf("%s: modified %v: want about now, in whole seconds", by, info.Modified)
	}
}

func (s *suite) putReplacesWhole() {
	long := s.put("x", noise(9000), store.Always)
	short := s.put("x", []byte("short"), store.Always)
	if long == short {
		s.Error("other bytes, and the same version")
	}
	if body, _ := s.get("x"); string(body) != "short" {
		s.Errorf("got %d bytes; want the second object alone", len(body))
	}
}

func (s *suite) absentIsNotFound() {
	s.put("there/is", []byte("this"), store.Always)
	for _, name := range []string{"no", "there/not", "no/such/place"} {
		name = s.at + name
		_, _, err := s.store.Get(s.ctx, name, 1000)
		s.is("get", err, store.ErrNotFound)
		_, err = s.store.GetRange(s.ctx, name, 0, 1)
		s.is("range", err, store.ErrNotFound)
		_, err = s.store.Stat(s.ctx, name)
		s.is("stat", err, store.ErrNotFound)
	}
	// A directory is none either.
	_, _, err := s.store.Get(s.ctx, s.at+"there", 1000)
	s.is("get of what has only others below it", err, store.ErrNotFound)
}

// is fails unless err is want and none of the others that callers decide on.
func (s *suite) is(what string, err, want error) {
	s.Helper()
	if !errors.Is(err, want) {
		s.Errorf("%s: %v; want %v", what, err, want)
	}
	for _, other := range []error{store.ErrNotFound, store.ErrExists, store.ErrChanged, store.ErrTooLarge, store.ErrRefused, store.ErrUnavailable} {
		if other != want && errors.Is(err, other) {
			s.Errorf("%s: %v, which is %v, too", what, err, other)
		}
	}
}

func (s *suite) emptyObjectsAreRefused() {
	for _, body := range [][]byte{nil, {}} {
		_, err := s.store.Put(s.ctx, s.at+"empty", body, store.Always)
		s.is("put of nothing", err, store.ErrRefused)
	}
	if found := s.list(""); len(found) > 0 {
		s.Error("it is there all the same:", found)
	}
}

func (s *suite) badNamesAreRefused() {
	bad := []string{"", "/", "/a", "a/", "a//b", ".", "..", "a/../b", "a/.b", "a\x00b", "a\nb", "\xff", strings.Repeat("x", store.MaxElement+1), strings.Repeat("abc/", 300) + "x"}
	for _, name := range bad {
		_, err := s.store.Put(s.ctx, name, []byte("x"), store.Always)
		s.is(fmt.Sprintf("put %q", name), err, store.ErrRefused)
		_, _, err = s.store.Get(s.ctx, name, 10)
		s.is(fmt.Sprintf("get %q", name), err, store.ErrRefused)
		_, err = s.store.GetRange(s.ctx, name, 0, 1)
		s.is(fmt.Sprintf("range %q", name), err, store.ErrRefused)
		_, err = s.store.Stat(s.ctx, name)
		s.is(fmt.Sprintf("stat %q", name), err, store.ErrRefused)
		s.is(fmt.Sprintf("delete %q", name), s.store.Delete(s.ctx, name), store.ErrRefused)
	}
	_, err := s.store.Put(s.ctx, s.at+"x", []byte("x"), store.Condition{Absent: true, Version: "v"})
	s.is("put with two conditions", err, store.ErrRefused)
}

func (s *suite) oddNamesWork() {
	deep := strings.TrimSuffix(strings.Repeat("elem/", (store.MaxName-len(s.at))/5-2), "/")
	odd := []string{"a b", "a+b", "a%20b", "a%2Fb", "ä/日本", "a&b=c?d#e", "~a'(b)*!$@:,;", `back\slash`, `q"uote`, "<x>&amp;", strings.Repeat("y", store.MaxElement), deep}
	for _, name := range odd {
		s.put(name, []byte(name), store.Condition{Absent: true})
	}
	for _, name := range odd {
		if body, info := s.get(name); string(body) != name || info.Name != s.at+name {
			s.Errorf("%q: got %q, named %q", name, body, info.Name)
		}
	}
	var listed []string
	for _, o := range s.list("") {
		listed = append(listed, strings.TrimPrefix(o.Name, s.at))
	}
	slices.Sort(odd)
	if !slices.Equal(listed, odd) {
		s.Errorf("listed %q;\nwant %q", listed, odd)
	}
}

func (s *suite) getIsBounded() {
	s.put("x", noise(1000), store.Always)
	_, _, err := s.store.Get(s.ctx, s.at+"x", 999)
	s.is("get of more than the limit", err, store.ErrTooLarge)
	if body, _, err := s.store.Get(s.ctx, s.at+"x", 1000); err != nil || len(body) != 1000 {
		s.Errorf("get of exactly the limit: %d bytes, %v", len(body), err)
	}
}

func (s *suite) ranges() {
	whole := noise(100_000)
	s.put("x", whole, store.Always)
	for _, r := range [][2]int64{{0, 1}, {0, 100_000}, {1, 99_999}, {99_999, 1}, {4096, 8192}} {
		part, err := s.store.GetRange(s.ctx, s.at+"x", r[0], r[1])
		if err != nil || !bytes.Equal(part, whole[r[0]:r[0]+r[1]]) {
			s.Errorf("%d bytes from %d: got %d that differ, %v", r[1], r[0], len(part), err)
		}
	}
	for _, r := range [][2]int64{{0, 100_001}, {99_999, 2}, {100_000, 1}, {1 << 40, 1}} {
		part, err := s.store.GetRange(s.ctx, s.at+"x", r[0], r[1])
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			s.Errorf("%d bytes from %d, past the end: got %d, %v; want io.ErrUnexpectedEOF", r[1], r[0], len(part), err)
		}
	}
	for _, r := range [][2]int64{{-1, 2}, {0, 0}, {0, -1}, {1 << 62, 1 << 62}} {
		_, err := s.store.GetRange(s.ctx, s.at+"x", r[0], r[1])
		s.is(fmt.Sprintf("%d bytes from %d", r[1], r[0]), err, store.ErrRefused)
	}
}

// largeObjects are longer than a part of a multipart upload is with any client, which then may lose its conditions.
func (s *suite) largeObjects() {
	size := 24 << 20
	if s.kind.Few {
		size = 6 << 20
	}
	want := noise(size)
	s.put("large", want, store.Condition{Absent: true})
	if body, _ := s.get("large"); !bytes.Equal(body, want) {
		s.Error("a large object came back with other bytes")
	}
	_, err := s.store.Put(s.ctx, s.at+"large", noise(size), store.Condition{Absent: true})
	if !s.kind.Busy || !errors.Is(err, store.ErrUnavailable) {
		s.is("a large object over another, where none must be", err, store.ErrExists)
	}
	if part, err := s.store.GetRange(s.ctx, s.at+"large", int64(size)-5000, 5000); err != nil || !bytes.Equal(part, want[size-5000:]) {
		s.Errorf("the end of a large object, which was to stay: %d bytes, %v", len(part), err)
	}
}

func (s *suite) deleteIsIdempotent() {
	s.put("d/x", []byte("x"), store.Always)
	s.put("d/y", []byte("y"), store.Always)
	for range 2 {
		if err := s.store.Delete(s.ctx, s.at+"d/x"); err != nil {
			s.Fatal(err)
		}
	}
	if err := s.store.Delete(s.ctx, s.at+"never/was"); err != nil {
		s.Fatal(err)
	}
	_, _, err := s.store.Get(s.ctx, s.at+"d/x", 10)
	s.is("get of what was deleted", err, store.ErrNotFound)
	if body, _ := s.get("d/y"); string(body) != "y" {
		s.Errorf("the neighbour is %q", body)
	}
	s.put("d/x", []byte("again"), store.Condition{Absent: true})
}

func (s *suite) endsWithItsContext() {
	version := s.put("x", []byte("x"), store.Always)
	ended, cancel := context.WithCancel(s.ctx)
	cancel()
	_, err := s.store.Put(ended, s.at+"x", []byte("y"), store.Always)
	s.is("put", err, context.Canceled)
	_, _, err = s.store.Get(ended, s.at+"x", 10)
	s.is("get", err, context.Canceled)
	_, err = s.store.GetRange(ended, s.at+"x", 0, 1)
	s.is("range", err, context.Canceled)
	_, err = s.store.Stat(ended, s.at+"x")
	s.is("stat", err, context.Canceled)
	_, _, err = s.store.List(ended, s.at)
	s.is("list", err, context.Canceled)
	s.is("delete", s.store.Delete(ended, s.at+"x"), context.Canceled)
	if _, info := s.get("x"); info.Version != version {
		s.Error("a call whose context had ended before has changed the object")
	}
}
