package proxy

import (
	"context"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// Orphan makes the session outlive its shim, which has died without a word: connections are held, nobody is asked to wake,
// and what was accepted goes on where its other end may come back. An awake sandbox ends with its shim, and its state with
// it: its connections are reset. It reports false when there is nothing to keep: no port is held, or the pod's network goes
// with the container.
func (s *Session) Orphan() bool {
	if len(s.ports) == 0 || !s.PodInUse() {
		return false
	}
	s.mu.Lock()
	awake := s.shim.state() == "awake"
	s.shim, s.reachable = shim{}, make(chan struct{})
	s.mu.Unlock()
	if awake {
		s.dropConnections()
	}
	return true
}

// Adopt gives an orphan to the workload's next shim. The connections wait for its first offer with a target.
func (s *Session) Adopt(w *node.Workload) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.shim = shim{w.Shim, w}
}

// Kept are the sockets that are served, by port. They stay the session's.
func (s *Session) Kept() map[uint16]*os.File {
	kept := make(map[uint16]*os.File)
	for number, p := range s.ports {
		kept[number] = p.listener
	}
	return kept
}

// Ports are those that are held, in order.
func (s *Session) Ports() []uint16 { return slices.Sorted(maps.Keys(s.ports)) }

// PodInUse reports whether the pod's network namespace is still where the shim found it. One that isn't lives only by the
// session's descriptors.
func (s *Session) PodInUse() bool {
	s.mu.Lock()
	path := s.podPath
	s.mu.Unlock()
	if path == "" {
		return false
	}
	there, err := os.Open(path)
	if err != nil {
		return false
	}
	defer there.Close()
	return s.InPod(there)
}

// InPod reports whether a descriptor means the session's network namespace.
func (s *Session) InPod(pod *os.File) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pod != nil && sameFile(s.pod, pod)
}

// targetReached lets those go on who waited for an orphan's workload, once that has a target. s.mu is held.
func (s *Session) targetReached() bool {
	if s.target.IsValid() && s.shim.Waker != nil {
		select {
		case <-s.reachable:
		default:
			close(s.reachable)
			s.started = time.Now()
		}
	}
	select {
	case <-s.reachable:
		return true
	default:
		return false
	}
}

// awaitShim returns the shim, that of an orphan as soon as it has one whose workload runs.
func (s *Session) awaitShim(ctx context.Context) (shim, error) {
	for {
		s.mu.Lock()
		now, reachable := s.shim, s.reachable
		s.mu.Unlock()
		select {
		case <-reachable:
		case <-ctx.Done():
			return shim{}, context.Cause(ctx)
		}
		if now.Waker != nil {
			return now, nil
		}
	}
}

// startedFor is how long an orphan's workload may refuse connections after it was started again. What lost its state begins
// anew, and its server needs longer than one that was restored.
const startedFor = 10 * time.Second

// starting reports whether a refused connection is worth another try.
func (s *Session) starting() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.started.IsZero() && time.Since(s.started) < startedFor
}

func closed() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}
