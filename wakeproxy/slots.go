package wakeproxy

import (
	"context"
	"sync"
)

// slots is a counting semaphore whose size may change; those who wait are
// served in order.
type slots struct {
	size func() int

	mu      sync.Mutex      // guards the fields below
	used    int             // may exceed a size that shrank
	waiting []chan struct{} // each closed when its owner has got a slot
}

func newSlots(size func() int) *slots { return &slots{size: size} }

func (s *slots) try() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) > 0 || s.used >= s.size() {
		return false
	}
	s.used++
	return true
}

func (s *slots) acquire(ctx context.Context) error {
	s.mu.Lock()
	mine := make(chan struct{})
	s.waiting = append(s.waiting, mine)
	s.serve()
	s.mu.Unlock()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-mine: // it came in the same moment
		s.used--
	default:
		for i, c := range s.waiting {
			if c == mine {
				s.waiting = append(s.waiting[:i], s.waiting[i+1:]...)
				break
			}
		}
	}
	s.serve()
	return context.Cause(ctx)
}

func (s *slots) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used--
	s.serve()
}

// serve gives free slots to those who wait. s.mu is held.
func (s *slots) serve() {
	for len(s.waiting) > 0 && s.used < s.size() {
		close(s.waiting[0])
		s.waiting = s.waiting[1:]
		s.used++
	}
}

func (s *slots) inUse() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.used
}
