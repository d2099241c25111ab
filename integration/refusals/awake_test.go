package refusals

import (
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/console"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// idle runs for ever and does nothing.
var idle = []string{"sh", "-c", "while :; do sleep 1; done"}

func TestAwake(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		code   string
		c      harness.Container
		sleeps bool // when asked to
		serves bool
	}{
		{code: "mode-off", c: harness.Container{CNI: true, Annotations: map[string]string{"mode": "off"}}, serves: true},
		{code: "mode-observe", c: harness.Container{CNI: true, Annotations: map[string]string{"mode": "observe"}}, serves: true, sleeps: true},
		{code: "mode-manual", c: harness.Container{CNI: true, Annotations: map[string]string{"mode": "manual"}}, serves: true, sleeps: true},
		{code: "host-network", c: harness.Container{Host: true}, serves: true},
		{code: "no-network", c: harness.Container{Args: idle}, sleeps: true},
		{code: "net-admin", c: harness.Container{CNI: true, Flags: []string{"--cap-add", "CAP_NET_ADMIN"}}, serves: true},
		{code: "paused", c: harness.Container{Args: idle}},
		{code: "exec", c: harness.Container{Args: idle}},
		{code: "lease", c: harness.Container{Args: idle}},
	} {
		t.Run(c.code, func(t *testing.T) {
			n := n.on(t)
			c.c.ID, c.c.Image = "a", "testserver"
			n.runs(c.c)
			if c.serves {
				n.answers(c.c)
			}
			stop := n.hinder(c.code)
			defer stop()
			if c.code == "no-network" || c.c.Args == nil || c.code == "net-admin" {
				n.keptAwake("a", c.code, c.sleeps)
			} else {
				n.refusesFor(c.code)
			}
			if c.serves {
				n.answers(c.c)
			}
		})
	}
}

// refusesFor is keptAwake for a container that has no network either: the code is among the reasons.
func (n *node) refusesFor(code string) {
	n.t.Helper()
	r := n.ctl("hibernate", "a")
	if r.code != 4 || !strings.Contains(r.stderr, "["+code+"]") {
		n.t.Errorf("hibernate: status %d: %s", r.code, r.stderr)
	}
	deadline := time.Now().Add(limit)
	for !slices.Contains(n.why("a"), code) {
		if time.Now().After(deadline) {
			n.t.Fatalf("why-awake: %v, want %s", n.why("a"), code)
		}
	}
}

// hinder gives the container what code says.
func (n *node) hinder(code string) (stop func()) {
	n.t.Helper()
	switch code {
	case "paused":
		if _, err := n.Ctr(n.context(), "tasks", "pause", "a"); err != nil {
			n.t.Fatal(err)
		}
	case "exec":
		if _, err := n.Ctr(n.context(), "tasks", "exec", "--detach", "--fifo-dir", n.Dir+"/fifo", "--exec-id", "x", "a", "sleep", "1000"); err != nil {
			n.t.Fatal(err)
		}
	case "lease":
		client, done, err := n.Shim(n.context(), "a")
		if err != nil {
			n.t.Fatal(err)
		}
		if _, err := client.Lease(n.context(), &shimv1.LeaseRequest{Name: "backup", TtlMs: 60000}); err != nil {
			n.t.Fatal(err)
		}
		return done
	}
	return func() {}
}

// answers checks that the container's server is reached.
func (n *node) answers(c harness.Container) {
	n.t.Helper()
	address, dial := "127.0.0.1", n.DialNode
	if c.CNI {
		ip, err := n.IP(n.context(), c.ID)
		if err != nil {
			n.t.Fatal(err)
		}
		address, dial = ip, n.Dial
	}
	ctx := n.context()
	for {
		conn, err := dial(ctx, "tcp", net.JoinHostPort(address, "7001")) // the server speaks first
		if err == nil {
			greeting := make([]byte, 3)
			_, err = io.ReadFull(conn, greeting)
			conn.Close()
			if err == nil && string(greeting) == "220" {
				return
			}
		}
		if ctx.Err() != nil {
			n.t.Fatalf("%s does not answer: %v", c.ID, err)
		}
	}
}

func TestTerminal(t *testing.T) {
	n := newNode(t)
	if err := n.Import(n.context(), "testserver"); err != nil {
		t.Fatal(err)
	}
	keys, path, err := console.NewPty()
	if err != nil {
		t.Fatal(err)
	}
	defer keys.Close()
	tty, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer tty.Close()
	c := harness.Container{ID: "a", Image: "testserver", CNI: true, Detach: true, Flags: []string{"--tty"}}
	cmd := n.Command(n.context(), "ctr", append([]string{"--address", n.Address(), "--namespace", n.Name}, n.RunArgs(c)...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	n.answers(c)
	n.keptAwake("a", "terminal", false)
	n.answers(c)
}
