// Package network has a server sleep and wake below all that clients do over a network, and below daemons that die.
//
// The tests are those of docs/NETWORK.md that need whole programs. With HIBERNATE_FULL=1 they run at size; what they ran at, they
// say.
package network

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	id       = "server"
	patience = time.Minute // for what is waited for; nothing takes so long unless it fails

	httpPort    = 8080
	echoPort    = 7000
	greetPort   = 7001
	udpPort     = 7002
	mannersPort = 7003
	tlsPort     = 8443
)

// full says whether tests run at size.
func full() bool { return os.Getenv("HIBERNATE_FULL") == "1" }

// atSize is the first by default, the second at size.
func atSize[T any](small, large T) T {
	if full() {
		return large
	}
	return small
}

// server is a test server in a pod of its own, with all its ports.
type server struct {
	t     *testing.T
	world *harness.World
	pod   harness.Pod
	web   *http.Client
}

// start runs a server. Settings are added to those of a world in which only tests put to sleep.
func start(t *testing.T, daemon bool, settings map[string]string) *server {
	t.Helper()
	return run(t, daemon, settings, mannersPort, harness.Container{
		Image: "testserver", Flags: []string{"--rlimit-nofile", "16384:16384"},
		Args: []string{"/usr/bin/testserver", "-tls", fmt.Sprint(":", tlsPort), "-manners", fmt.Sprint(":", mannersPort)},
	})
}

// run runs a container as start does, until it listens on a port.
func run(t *testing.T, daemon bool, settings map[string]string, port int, c harness.Container) *server {
	t.Helper()
	all := map[string]string{"mode": `"manual"`}
	for k, v := range settings {
		all[k] = v
	}
	w := harness.New(t, harness.Options{Daemon: daemon, Settings: all})
	s := &server{t: t, world: w, web: w.HTTP()}
	var err error
	if s.pod, err = w.NewPod(s.ctx(), id); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := w.Remove(ctx, id); err != nil {
			t.Error(err)
		}
		if err := w.RemovePod(ctx, s.pod); err != nil {
			t.Error(err)
		}
	})
	c.ID, c.NetNS, c.Detach = id, s.pod.Path, true
	_, err = w.Run(s.ctx(), c)
	s.must(err)
	s.must(w.WaitPort(s.ctx(), s.address(port)))
	return s
}

func (s *server) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	s.t.Cleanup(cancel)
	return ctx
}

func (s *server) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *server) address(port int) string { return net.JoinHostPort(s.pod.IP, fmt.Sprint(port)) }

// sleep puts the server to sleep, and returns its status then.
func (s *server) sleep() *shimv1.StatusResponse {
	s.t.Helper()
	_, err := s.world.WaitState(s.ctx(), id, "awake") // answers may come before a wake is done
	s.must(err)
	_, err = s.world.Sleep(s.ctx(), id)
	s.must(err)
	now, err := s.world.WaitState(s.ctx(), id, "asleep")
	s.must(err)
	return now
}

// woken looks that the server has woken once since, and by what.
func (s *server) woken(before *shimv1.StatusResponse, reason string) {
	s.t.Helper()
	now, err := s.world.WaitState(s.ctx(), id, "awake")
	s.must(err)
	last := now.GetLastWake()
	if now.GetWakes() != before.GetWakes()+1 || last.GetOutcome() != "restored" || last.GetReason() != reason {
		s.t.Fatalf("%d wakes, the last %s by %s (%s); want one by %s", now.GetWakes()-before.GetWakes(), last.GetOutcome(),
			last.GetReason(), last.GetDetail(), reason)
	}
}

// dial connects as the client.
func (s *server) dial(port int) net.Conn {
	s.t.Helper()
	c, err := s.world.Dial(s.ctx(), "tcp", s.address(port))
	s.must(err)
	s.t.Cleanup(func() { c.Close() })
	s.must(c.SetDeadline(time.Now().Add(2 * patience)))
	return c
}

// get is one HTTP exchange, on a connection of its own.
func (s *server) get(path string) []byte {
	s.t.Helper()
	r, err := s.web.Get("http://" + s.address(httpPort) + path)
	s.must(err)
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		s.t.Fatalf("GET %s: %s %s, %v", path, r.Status, body, err)
	}
	return body
}

// guest is what the server knows of a connection to its port of manners.
type guest struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	End    string `json:"end"`
}

// ended waits until the server has seen the end of a connection to its port of manners.
func (s *server) ended(c net.Conn) guest {
	s.t.Helper()
	return s.endOf(c.LocalAddr().String())
}

// endOf is ended by the connection's name: the server sees another port of the client's where it was held.
func (s *server) endOf(name string) (g guest) {
	s.t.Helper()
	eventually(s.t, "the server sees the end of "+name, func() bool {
		g = s.guest(name)
		return g.End != "open"
	})
	return g
}

// guest is what the server knows of a connection to its port of manners.
func (s *server) guest(name string) (g guest) {
	s.t.Helper()
	s.must(json.Unmarshal(s.get("/manners?peer="+name), &g))
	return g
}

// exchange says a line and wants it back.
func exchange(c net.Conn, line string) error {
	if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return fmt.Errorf("say %q: %w", line, err)
	}
	return hear(c, line+"\n")
}

// hear wants a text.
func hear(c net.Conn, text string) error {
	got := make([]byte, len(text))
	if n, err := io.ReadFull(c, got); err != nil {
		return fmt.Errorf("heard %q of %q: %w", got[:n], text, err)
	}
	if string(got) != text {
		return fmt.Errorf("heard %q, not %q", got, text)
	}
	return nil
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for begin := time.Now(); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > patience {
			t.Fatalf("in vain: %s", what)
		}
	}
}

// lineOf reads a line.
func lineOf(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	return strings.TrimSuffix(line, "\n"), err
}
