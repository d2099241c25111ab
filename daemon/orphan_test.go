package daemon_test

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// ours is a path of a network namespace that stays in use.
const ours = "/proc/self/ns/net"

// owned makes a listening socket and gives it to a registration of a workload whose pod outlives it, so that the daemon has
// the only descriptors.
func (n *node) owned(shim *shimtest.Shim, podPath string) (address string, conn *handover.Conn) {
	n.t.Helper()
	address, file := listener(n.t)
	conn = n.register(shim, nil)
	h := helloOf(shim)
	h.Target, h.PodPath = netip.MustParseAddr("127.0.0.1"), podPath
	_, err := say(conn, h, map[uint16]*os.File{1: file})
	if err = errors.Join(err, file.Close()); err != nil {
		n.t.Fatal(err)
	}
	return address, conn
}

// hold connects clients, each with a word that nobody has answered yet.
func hold(t *testing.T, address string, n int) []net.Conn {
	t.Helper()
	clients := make([]net.Conn, n)
	for i := range clients {
		clients[i] = connect(t, address)
		if _, err := clients[i].Write([]byte("hello")); err != nil {
			t.Fatal(err)
		}
	}
	return clients
}

func answered(t *testing.T, clients []net.Conn) {
	t.Helper()
	for i, c := range clients {
		answer := make([]byte, 5)
		if _, err := io.ReadFull(c, answer); err != nil || string(answer) != "hello" {
			t.Fatalf("client %d: %q, %v", i, answer, err)
		}
	}
}

func reset(t *testing.T, clients []net.Conn) {
	t.Helper()
	for i, c := range clients {
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Fatalf("client %d: %v, not a reset", i, err)
		}
	}
}

// TestShimDies: who waits, and who comes while no shim is there, is served by the next one, that gets the socket back.
func TestShimDies(t *testing.T) {
	n := newNode(t)
	n.orphans = time.Minute
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	shim.Hang(true)
	address, conn := n.owned(shim, ours)
	clients := hold(t, address, 50)
	_ = conn.Close()
	shim.Stop()
	eventually(t, "the death is told", func() bool { return strings.Contains(n.log.String(), "gone without a word") })
	clients = append(clients, hold(t, address, 20)...)

	next := shimtest.Start(t, "default", "redis")
	next.State("asleep")
	conn, err := handover.Dial(t.Context(), filepath.Join(n.runDir, "hibernated.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h := helloOf(next)
	h.PodPath = ours
	kept, err := say(conn, h, nil)
	if err != nil || kept[1] == nil {
		t.Fatalf("given back: %v, %v", kept, err)
	}
	defer kept[1].Close()
	twice, err := say(conn, h, nil) // as when the first answer came too late
	if err != nil || twice[1] == nil {
		t.Fatalf("given back again: %v, %v", twice, err)
	}
	_ = twice[1].Close()
	clients = append(clients, hold(t, address, 20)...)
	if got := next.Wakes(); len(got) > 0 {
		t.Fatalf("it was woken before it was started: %v", got)
	}
	h.Target = netip.MustParseAddr("127.0.0.1")
	if again, err := say(conn, h, kept); err != nil || len(again) > 0 {
		t.Fatalf("then given back: %v, %v", again, err)
	}
	answered(t, clients)
	if got := next.Wakes(); len(got) == 0 {
		t.Error("it was not woken")
	}
	if err := roundTrip(address); err != nil {
		t.Error(err)
	}
}

// TestShimDiesAwake: what was accepted is lost with the sandbox, and told so at once; new connections wait.
func TestShimDiesAwake(t *testing.T) {
	n := newNode(t)
	n.orphans = time.Minute
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	address, conn := n.owned(shim, ours)
	accepted := hold(t, address, 3)
	answered(t, accepted)
	eventually(t, "it is known to be awake", func() bool { return n.list()["redis"].GetStatus().GetState() == "awake" })
	_ = conn.Close()
	reset(t, accepted)
	waiting := hold(t, address, 3)
	next := shimtest.Start(t, "default", "redis")
	again := n.register(next, nil)
	h := helloOf(next)
	h.Target, h.PodPath = netip.MustParseAddr("127.0.0.1"), ours
	kept, err := say(again, h, nil)
	if err != nil || len(kept) > 0 {
		t.Fatalf("given back with a later hello: %v, %v", kept, err)
	}
	reset(t, waiting) // the shim that started it has no such port
}

// TestNobodyComesBack: after a while the waiting ends, by a reset that the log tells.
func TestNobodyComesBack(t *testing.T) {
	n := newNode(t)
	n.orphans = 300 * time.Millisecond
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	shim.Hang(true)
	address, conn := n.owned(shim, ours)
	clients := hold(t, address, 5)
	_ = conn.Close()
	reset(t, clients)
	eventually(t, "it is told", func() bool { return strings.Contains(n.log.String(), "not started again within 300ms") })
	refused(t, address)
}

func refused(t *testing.T, address string) {
	t.Helper()
	eventually(t, "the socket is closed", func() bool {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// TestProperEndResetsAtOnce: a workload that has ended holds nobody, however its shim leaves afterwards.
func TestProperEndResetsAtOnce(t *testing.T) {
	n := newNode(t)
	n.orphans = time.Hour
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	address, conn := n.owned(shim, ours)
	accepted := hold(t, address, 2)
	answered(t, accepted)
	shim.State("asleep")
	eventually(t, "it sleeps", func() bool { return n.list()["redis"].GetStatus().GetState() == "asleep" })
	shim.Hang(true)
	waiting := hold(t, address, 5)
	if err := conn.End(); err != nil {
		t.Fatal(err)
	}
	reset(t, accepted)
	reset(t, waiting)
	refused(t, address)
	if n.list()["redis"] == nil {
		t.Error("it left the view before its shim")
	}
	_ = conn.Close()
	eventually(t, "it leaves the view", func() bool { return n.list()["redis"] == nil })
	if strings.Contains(n.log.String(), "gone without a word") {
		t.Error("it is taken for one that died")
	}
}

// TestNamespaceGoneWithThePod: an orphan doesn't keep a network alive that nobody can find any more.
func TestNamespaceGoneWithThePod(t *testing.T) {
	for name, path := range map[string]string{"with the container": "", "later": filepath.Join(t.TempDir(), "net")} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.orphans = time.Hour
			n.run()
			shim := shimtest.Start(t, "default", "redis")
			shim.State("asleep")
			shim.Hang(true)
			if path != "" {
				if err := os.Symlink(ours, path); err != nil {
					t.Fatal(err)
				}
			}
			address, conn := n.owned(shim, path)
			clients := hold(t, address, 5)
			_ = conn.Close()
			if path != "" {
				eventually(t, "the death is told", func() bool { return strings.Contains(n.log.String(), "gone without a word") })
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				eventually(t, "it is told", func() bool { return strings.Contains(n.log.String(), "its network namespace is gone") })
			}
			reset(t, clients)
			refused(t, address)
		})
	}
}

// TestAnotherWorkloadInThePod: the next owner of a network namespace finds its ports free.
func TestAnotherWorkloadInThePod(t *testing.T) {
	n := newNode(t)
	n.orphans = time.Hour
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	shim.Hang(true)
	address, conn := n.owned(shim, ours)
	clients := hold(t, address, 5)
	_ = conn.Close()
	eventually(t, "the death is told", func() bool { return strings.Contains(n.log.String(), "gone without a word") })
	n.register(shimtest.Start(t, "default", "nginx"), nil)
	reset(t, clients)
	refused(t, address)
	eventually(t, "it is told", func() bool { return strings.Contains(n.log.String(), "another workload, default/nginx") })
}
