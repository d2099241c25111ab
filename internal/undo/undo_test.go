package undo

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
)

func TestRunGoesBackwardsAndJoinsErrors(t *testing.T) {
	var s Stack
	var order []string
	errA, errC := errors.New("a failed"), errors.New("c failed")
	for _, st := range []struct {
		name string
		err  error
	}{{"a", errA}, {"b", nil}, {"c", errC}} {
		s.Push(st.name, func(context.Context) error { order = append(order, st.name); return st.err })
	}
	if got := s.Names(); !slices.Equal(got, []string{"c", "b", "a"}) {
		t.Fatalf("names %v", got)
	}
	err := s.Run(t.Context())
	if !slices.Equal(order, []string{"c", "b", "a"}) {
		t.Fatalf("order %v", order)
	}
	if !errors.Is(err, errA) || !errors.Is(err, errC) || !strings.Contains(err.Error(), "undo: c: c failed") {
		t.Fatalf("error %v", err)
	}
	if err := s.Run(t.Context()); err != nil || len(order) != 3 {
		t.Fatal("a second run did something")
	}
}

func TestReleaseKeepsWhatWasDone(t *testing.T) {
	var s Stack
	s.Push("never", func(context.Context) error { t.Error("ran"); return nil })
	s.Release()
	if err := s.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestStepMayPush(t *testing.T) {
	var s Stack
	ran := false
	s.Push("outer", func(context.Context) error {
		s.Push("inner", func(context.Context) error { ran = true; return nil })
		return nil
	})
	if err := s.Run(t.Context()); err != nil || !ran {
		t.Fatalf("ran=%v err=%v", ran, err)
	}
}
