package memstore

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Op is a method of a store.
type Op string

const (
	Put      Op = "put"
	Get      Op = "get"
	GetRange Op = "range"
	Stat     Op = "stat"
	List     Op = "list"
	Delete   Op = "delete"
)

// Kind is what goes wrong.
type Kind int

const (
	None       Kind = iota
	LoseAnswer      // it is done, and the answer is lost: ErrUnavailable
	Fail            // it isn't done: Err, or ErrUnavailable as a server that says "slow down"
	Stall           // it isn't done, and nothing is said until the context ends
	StallAfter      // it is done, and nothing is said until the context ends
	Flip            // one bit of what is read is another
	Short           // what is read, or the list, ends halfway, and says nothing of that; a GetRange misses its bytes
)

// Fault is one thing that goes wrong, once, or Times times.
type Fault struct {
	Op    Op     // empty: any
	Name  string // the name or the prefix of names that it is for; empty: all
	Skip  int    // how many calls that it is for pass before
	Times int    // how often; 0 is once, and a negative number for ever
	Kind  Kind
	Err   error  // of Fail; nil: ErrUnavailable
	Do    func() // called before all else with no lock held, for a writer that races: it may use other stores of the bucket
}

// faults are those of one store.
type faults struct {
	mu     sync.Mutex
	script []Fault
	before func(Op, string) Fault
}

// Script adds faults. Each call takes the first of them that is for it.
func (s *Store) Script(faults ...Fault) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	for _, f := range faults {
		if f.Times == 0 {
			f.Times = 1
		}
		s.faults.script = append(s.faults.script, f)
	}
}

// Before asks decide at each call for which nothing is scripted; Kind None, and nothing goes wrong. For random faults, and for
// counting.
func (s *Store) Before(decide func(op Op, name string) Fault) {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.before = decide
}

// Heal forgets all faults.
func (s *Store) Heal() {
	s.faults.mu.Lock()
	defer s.faults.mu.Unlock()
	s.faults.script, s.faults.before = nil, nil
}

// next takes the fault that is for a call.
func (f *faults) next(op Op, name string) Fault {
	f.mu.Lock()
	for i := range f.script {
		fault := &f.script[i]
		if fault.Times == 0 || (fault.Op != "" && fault.Op != op) || !strings.HasPrefix(name, fault.Name) {
			continue
		}
		if fault.Skip > 0 {
			fault.Skip--
			continue
		}
		if fault.Times > 0 {
			fault.Times--
		}
		taken := *fault
		f.mu.Unlock()
		return taken
	}
	before := f.before
	f.mu.Unlock()
	if before == nil {
		return Fault{}
	}
	return before(op, name)
}

// begin does what a fault does before the operation: an error means that it isn't done.
func (s *Store) begin(ctx context.Context, op Op, name string) (Fault, error) {
	if err := ctx.Err(); err != nil {
		return Fault{}, fmt.Errorf("%s %s: %w", op, name, err)
	}
	fault := s.faults.next(op, name)
	if fault.Do != nil {
		fault.Do()
	}
	switch fault.Kind {
	case Fail:
		err := fault.Err
		if err == nil {
			err = fmt.Errorf("%w: it says slow down", store.ErrUnavailable)
		}
		return fault, fmt.Errorf("%s %s: %w", op, name, err)
	case Stall:
		<-ctx.Done()
		return fault, fmt.Errorf("%s %s: %w", op, name, ctx.Err())
	}
	return fault, nil
}

// after does what a fault does once the operation is done: an error is what the caller gets in place of the answer.
func (f Fault) after(ctx context.Context, op Op, name string) error {
	switch f.Kind {
	case LoseAnswer:
		return fmt.Errorf("%s %s: %w: the connection was closed before the answer", op, name, store.ErrUnavailable)
	case StallAfter:
		<-ctx.Done()
		return fmt.Errorf("%s %s: %w", op, name, ctx.Err())
	}
	return nil
}

// flip changes what was read as the fault says.
func (f Fault) flip(body []byte) []byte {
	if f.Kind == Flip {
		body[len(body)/2] ^= 0x10
	}
	return body
}
