// Package known is for tests that must see whether a container's state is kept or lost: a *server* is a test server whose
// memory and counter are known, so that one which goes on can be told from one which began afresh.
//
//	s := known.New(t, world, "web", pod)
//	s.Start(harness.Container{}, 4)
//	s.Sleep()
//	s.GoesOn() // by a request, which wakes it
package known

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// Patience bounds everything that is waited for; nothing takes so long unless it fails.
const Patience = 40 * time.Second

// T is the test in which a server is used at the moment.
type T interface {
	Helper()
	Cleanup(func())
	Fatal(...any)
	Fatalf(string, ...any)
}

// Eventually polls until ok, for as long as there is patience.
func Eventually(t T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > Patience {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// Server is a test server in a pod of its own. Its methods fail the test.
type Server struct {
	ID  string
	Pod harness.Pod

	t       T
	world   *harness.World
	client  *http.Client
	counter int
	sum     string // of the memory
}

// New names a server that is to run in a pod.
func New(t T, w *harness.World, id string, pod harness.Pod) *Server {
	s := &Server{ID: id, Pod: pod, t: t, world: w, client: w.HTTP()}
	s.client.Timeout = Patience
	return s
}

// Start starts the server with MiB of memory that is its own, and begins to know its state. Of c, what is the server's is
// filled in.
func (s *Server) Start(c harness.Container, mib int) {
	s.t.Helper()
	_, err := s.world.Run(s.ctx(), s.container(c, mib))
	s.must(err)
	s.Grow()
}

// container fills in what is the server's.
func (s *Server) container(c harness.Container, mib int) harness.Container {
	c.ID, c.Image, c.NetNS, c.Detach = s.ID, "testserver", s.Pod.Path, true
	c.Env = append(c.Env, fmt.Sprintf("TESTSERVER_MIB=%d", mib))
	return c
}

// StartAs starts another container, which is to go on from where other is now, with an identity of its own. Of c, what is the server's is
// filled in; other may have been started with the same number of MiB only.
func (s *Server) StartAs(c harness.Container, mib int, other *Server) {
	s.t.Helper()
	c.ID, c.Image, c.NetNS, c.Detach = s.ID, "testserver", s.Pod.Path, true
	c.Env = append(c.Env, fmt.Sprintf("TESTSERVER_MIB=%d", mib))
	s.counter, s.sum = other.counter, other.sum
	_, err := s.world.Run(s.ctx(), c)
	s.must(err)
}

// Grow waits for the port, and begins to know the state.
func (s *Server) Grow() {
	s.t.Helper()
	s.must(s.world.WaitPort(s.ctx(), s.Address(8080)))
	s.counter = 0
	s.Count()
	s.sum = s.Get("GET", "/memory/sha256")
}

// Again starts the same container with a new task, as soon as containerd has forgotten the old one.
func (s *Server) Again() {
	s.t.Helper()
	var err error
	Eventually(s.t, "containerd forgets the old task", func() bool {
		_, err = s.world.Ctr(s.ctx(), "tasks", "start", "--detach", "--null-io", s.ID)
		return err == nil || !strings.Contains(err.Error(), "already exists")
	})
	s.must(err)
}

// Count advances the counter, which must not have lost one.
func (s *Server) Count() {
	s.t.Helper()
	s.counter++
	if got := s.Get("POST", "/counter"); got != fmt.Sprint(s.counter) {
		s.t.Fatalf("the counter is %s, want %d", got, s.counter)
	}
}

// GoesOn looks that all state is there.
func (s *Server) GoesOn() {
	s.t.Helper()
	s.Count()
	if got := s.Get("GET", "/memory/sha256"); got != s.sum {
		s.t.Fatal("the memory is another one")
	}
}

// IsNew looks that the server began afresh, and takes its state for known.
func (s *Server) IsNew() {
	s.t.Helper()
	sum := s.sum
	s.Grow()
	if s.sum == sum {
		s.t.Fatal("the memory is that of the lost server")
	}
}

// Address is where a port of the server is reached.
func (s *Server) Address(port int) string { return net.JoinHostPort(s.Pod.IP, fmt.Sprint(port)) }

// Get is Try, which must succeed.
func (s *Server) Get(method, path string) string {
	s.t.Helper()
	body, err := s.Try(method, path)
	if err != nil {
		s.t.Fatal(err)
	}
	return body
}

// Try asks the server over a connection that may be an old one.
func (s *Server) Try(method, path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://"+s.Address(8080)+path, nil)
	if err != nil {
		return "", err
	}
	response, err := s.client.Do(r)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s %s", method, path, response.Status, body)
	}
	return strings.TrimSpace(string(body)), err
}

// HangUp closes the connections that wait for another request.
func (s *Server) HangUp() { s.client.CloseIdleConnections() }

// Awake waits for the end of a wake: answers may come before it.
func (s *Server) Awake() {
	s.t.Helper()
	_, err := s.world.WaitState(s.ctx(), s.ID, "awake")
	s.must(err)
}

// Sleep puts the server to sleep.
func (s *Server) Sleep() {
	s.t.Helper()
	s.Awake()
	done, err := s.world.Sleep(s.ctx(), s.ID)
	if err != nil || done.GetOutcome() != "slept" {
		s.t.Fatalf("hibernation: %v, %v", done, err)
	}
}

// Sandbox is the pid of its sandbox; 0 when there is none.
func (s *Server) Sandbox() int {
	s.t.Helper()
	now, err := s.world.Status(s.ctx(), s.ID)
	s.must(err)
	return int(now.GetSandboxPid())
}

// Holder is the process that containerd knows as the task's.
func (s *Server) Holder() int {
	s.t.Helper()
	now, err := s.world.Status(s.ctx(), s.ID)
	s.must(err)
	return int(now.GetHolderPid())
}

// Shim is the pid of its shim.
func (s *Server) Shim() int {
	s.t.Helper()
	r, err := s.world.Record(s.ID)
	s.must(err)
	return r.Pid
}

// Descriptors is how many the server's shim has open.
func (s *Server) Descriptors() int {
	s.t.Helper()
	n, err := harness.Descriptors(s.Shim())
	s.must(err)
	return n
}

// Bundle is containerd's directory of the task, inside the world.
func (s *Server) Bundle() string {
	return filepath.Join(s.world.Dir, "state/io.containerd.runtime.v2.task", s.world.Namespace, s.ID)
}

func (s *Server) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), Patience)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *Server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}
