package verbs

import (
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const terminate = syscall.SIGTERM

// server is a test server behind CNI, asked over HTTP.
type server struct {
	*node
	id, address string
	http        *http.Client
}

// server finds the address of a container that runs, and waits until it answers.
func (n *node) server(id string) *server {
	n.t.Helper()
	ip, err := n.IP(n.context(), id)
	if err != nil {
		n.t.Fatal(err)
	}
	s := &server{node: n, id: id, address: net.JoinHostPort(ip, "8080"), http: n.HTTP()}
	n.t.Cleanup(s.rest)
	if err := n.WaitPort(n.context(), s.address); err != nil {
		n.t.Fatal(err)
	}
	return s
}

// serve starts a test server behind CNI.
func (n *node) serve(c harness.Container) *server {
	n.t.Helper()
	c.Image, c.CNI = "testserver", true
	n.detached(c)
	return n.server(c.ID)
}

func (s *server) get(path string) string {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.context(), http.MethodPost, "http://"+s.address+path, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	response, err := s.http.Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s: %s %v", path, response.Status, body, err)
	}
	return strings.TrimSpace(string(body))
}

// rest lets go of connections, so that their ends don't come while it goes to sleep.
func (s *server) rest() { s.http.CloseIdleConnections() }
