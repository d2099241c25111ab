package known

import (
	"net"
	"strings"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
)

// Task connects to the shim's task service, as containerd does.
func (s *Server) Task() (task taskv3.TTRPCTaskService, hangUp func()) {
	s.t.Helper()
	r, err := s.world.Record(s.ID)
	s.must(err)
	var d net.Dialer
	conn, err := d.DialContext(s.ctx(), "unix", s.world.Path(strings.TrimPrefix(r.Address, "unix://")))
	s.must(err)
	c := ttrpc.NewClient(conn)
	return taskv3.NewTTRPCTaskClient(c), func() { c.Close() }
}

// ExitStatus is what the shim tells of a task that has ended.
func (s *Server) ExitStatus() uint32 {
	s.t.Helper()
	task, hangUp := s.Task()
	defer hangUp()
	r, err := task.State(s.ctx(), &taskv3.StateRequest{ID: s.ID})
	s.must(err)
	return r.GetExitStatus()
}
