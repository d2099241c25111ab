// Package undo keeps the stack of what has to be taken back when an operation
// of several steps fails half-way.
//
//	var u undo.Stack
//	defer func() { err = errors.Join(err, u.Run(context.WithoutCancel(ctx))) }()
//	… u.Push("remove link", link.Remove) …
//	u.Release() // everything worked: keep it
//
// The zero Stack is ready to use. It is not safe for concurrent use.
package undo

import (
	"context"
	"errors"
	"fmt"
)

// Stack holds undo steps, the newest on top.
type Stack struct{ steps []step }

type step struct {
	name string
	fn   func(context.Context) error
}

// Push puts fn on top. The name is what an error of fn is reported under.
func (s *Stack) Push(name string, fn func(context.Context) error) {
	s.steps = append(s.steps, step{name, fn})
}

// Run calls every step, newest first, whatever the others return, and empties
// the stack. It joins the errors. ctx is handed to each step; a caller whose
// own context may be over passes one that is not, with a deadline.
func (s *Stack) Run(ctx context.Context) error {
	var errs []error
	for len(s.steps) > 0 {
		top := s.steps[len(s.steps)-1]
		s.steps = s.steps[:len(s.steps)-1]
		if err := top.fn(ctx); err != nil {
			errs = append(errs, fmt.Errorf("undo: %s: %w", top.name, err))
		}
	}
	return errors.Join(errs...)
}

// Release forgets every step: what was done is kept.
func (s *Stack) Release() { s.steps = nil }

// Names lists the pending steps in the order Run would call them, for logs
// and journals.
func (s *Stack) Names() []string {
	names := make([]string, 0, len(s.steps))
	for i := len(s.steps) - 1; i >= 0; i-- {
		names = append(names, s.steps[i].name)
	}
	return names
}
