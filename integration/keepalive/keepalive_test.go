// Package keepalive has a server sleep whose clients ask each second whether their connections are still there.
package keepalive

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	id            = "server"
	echoPort      = "7000"
	answerTimeout = 30 * time.Second
	envFull       = "HIBERNATE_FULL" // 1: at size
)

// atSize are the number of connections, and the sleeps in which nothing may happen. Five seconds are more than what a
// client without answers lasts.
func atSize() (connections int, naps []time.Duration) {
	if os.Getenv(envFull) == "1" {
		return 1000, []time.Duration{time.Minute, 20 * time.Second, 20 * time.Second}
	}
	return 50, []time.Duration{20 * time.Second, 5 * time.Second, 5 * time.Second}
}

// server is a test server, and a world around it.
type server struct {
	world *harness.World
	ip    string
}

// start runs a server. Without a daemon its gate parks.
func start(t *testing.T, daemon bool) *server {
	t.Helper()
	w := harness.New(t, harness.Options{Daemon: daemon, Settings: map[string]string{"mode": `"manual"`}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := w.Run(ctx, harness.Container{ID: id, Image: "testserver", CNI: true, Detach: true}); err != nil {
		t.Fatal(err)
	}
	ip, err := w.IP(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WaitPort(ctx, net.JoinHostPort(ip, echoPort)); err != nil {
		t.Fatal(err)
	}
	return &server{world: w, ip: ip}
}

// client is one connection, which asks each second, and is given up after three questions without an answer.
type client struct {
	net.Conn
	in *bufio.Reader
}

func (s *server) dial(t *testing.T) *client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	c, err := s.world.Dial(ctx, "tcp", net.JoinHostPort(s.ip, echoPort))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	err = c.(*net.TCPConn).SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: time.Second, Interval: time.Second, Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	return &client{c, bufio.NewReader(c)}
}

func (c *client) address() netip.AddrPort { return netip.MustParseAddrPort(c.LocalAddr().String()) }

// say sends a line and waits for its echo.
func (c *client) say(t *testing.T, line string) {
	t.Helper()
	c.send(t, line+"\n")
	if got, err := c.in.ReadString('\n'); got != line+"\n" || err != nil {
		t.Fatalf("%s: heard %q, not %q: %v", c.LocalAddr(), got, line, err)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		t.Fatal(err)
	}
}

func (c *client) send(t *testing.T, text string) {
	t.Helper()
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
}

// sleep puts the server to sleep, and returns how often it has woken so far.
func (s *server) sleep(t *testing.T) uint64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	slept, err := s.world.Sleep(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	now, err := s.world.Status(ctx, id)
	if err != nil {
		t.Fatal(err)
	}
	wakes := now.GetWakes()
	if now.GetState() == "awake" && now.GetLastWake().GetStartedUnixMs() >= slept.GetStartedUnixMs() { // it didn't sleep for long
		wakes--
	}
	return wakes
}

// sleeps looks that the server hasn't woken since.
func (s *server) sleeps(t *testing.T, wakes uint64) {
	t.Helper()
	now, err := s.world.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if now.GetState() != "asleep" || now.GetWakes() != wakes {
		t.Fatalf("it is %s after %d wakes; the last by %s", now.GetState(), now.GetWakes()-wakes, now.GetLastWake().GetReason())
	}
}

// woken looks that a packet has woken the server once.
func (s *server) woken(t *testing.T, before uint64) {
	t.Helper()
	now, err := s.world.WaitState(t.Context(), id, "awake")
	if err != nil {
		t.Fatal(err)
	}
	last := now.GetLastWake()
	if now.GetWakes() != before+1 || last.GetReason() != "packet" || last.GetOutcome() != "restored" {
		t.Fatalf("%d wakes, the last %s by %s: %s", now.GetWakes()-before, last.GetOutcome(), last.GetReason(), last.GetDetail())
	}
}

// Keep-alives each second on many connections, some without timestamps, let the server sleep, and find their connections
// open; then data on each wakes it, and is answered. The gate holds, or parks.
func TestConnectionsOutliveSleep(t *testing.T) {
	for name, daemon := range map[string]bool{"Held": true, "Parked": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			outlive(t, start(t, daemon))
		})
	}
}

func outlive(t *testing.T, s *server) {
	connections, naps := atSize()
	t.Logf("%d connections, asleep for %v", connections, naps)
	clients := make([]*client, connections)
	for i := range clients {
		switch i {
		case connections - 5:
			s.timestamps(t, false)
		case connections - 2: // the other end, too, has some of its own accord
			s.timestamps(t, true)
		}
		clients[i] = s.dial(t)
		clients[i].say(t, "hello")
	}
	for cycle, nap := range naps {
		wakes := s.sleep(t)
		time.Sleep(nap)
		s.sleeps(t, wakes)
		for k := range 4 { // one after another, from both ends of the list
			i := (cycle*4 + k) * (connections - 1) / (len(naps)*4 - 1)
			clients[i].say(t, fmt.Sprintf("cycle %d wakes by connection %d", cycle, i))
			s.woken(t, wakes)
			if k < 3 {
				wakes = s.sleep(t)
			}
		}
		for i, c := range clients {
			c.say(t, fmt.Sprintf("cycle %d, connection %d", cycle, i))
		}
	}
}

// timestamps switches the option for the client's next connections.
func (s *server) timestamps(t *testing.T, on bool) {
	t.Helper()
	value := "0"
	if on {
		value = "1"
	}
	s.asClient(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_timestamps", []byte(value), 0) })
}

// asClient runs fn inside the client's network namespace.
func (s *server) asClient(t *testing.T, fn func() error) {
	t.Helper()
	if err := ns.WithNetNSPath(s.world.Path("/run/netns/client"), func(ns.NetNS) error { return fn() }); err != nil {
		t.Fatal(err)
	}
}

// A client that has stopped reading, and begins again while the server sleeps, gets the rest: its window update wakes.
func TestDownloadGoesOn(t *testing.T) {
	s := start(t, true)
	c := s.dial(t)
	const line, lines = 1 << 10, 16 << 10 // more than fits between the two ends
	text := strings.Repeat("x", line-1) + "\n"
	go func() {
		for range lines {
			if _, err := io.WriteString(c, text); err != nil {
				return
			}
		}
	}()
	first := make([]byte, line)
	if _, err := io.ReadFull(c, first); err != nil {
		t.Fatal(err)
	}
	wakes := s.sleep(t)
	if err := c.SetReadDeadline(time.Now().Add(2 * answerTimeout)); err != nil {
		t.Fatal(err)
	}
	if n, err := io.CopyN(io.Discard, c, line*(lines-1)); err != nil {
		t.Fatalf("after %d bytes of %d: %v", n, line*(lines-1), err)
	}
	now, err := s.world.Status(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	if now.GetWakes() == wakes {
		t.Fatal("it was all there before the wake: nothing is shown")
	}
}
