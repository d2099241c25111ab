package known

import "github.com/hibernate-runtime/hibernate/integration/harness"

// Follow names the server that goes on from where o's state is by now, in another container, perhaps of another world.
func Follow(t T, o *Server, w *harness.World, id string, pod harness.Pod) *Server {
	s := New(t, w, id, pod)
	s.counter, s.sum = o.counter, o.sum
	return s
}

// Resume starts the server's container, which is to go on from the state that is known. An error is why it was not started.
func (s *Server) Resume(c harness.Container, mib int) error {
	s.t.Helper()
	_, err := s.world.Run(s.ctx(), s.container(c, mib))
	return err
}

// Counted is how far the counter has come.
func (s *Server) Counted() int { return s.counter }

// Recall takes an earlier count for the known one, of a server that goes on from an older state.
func (s *Server) Recall(counter int) { s.counter = counter }
