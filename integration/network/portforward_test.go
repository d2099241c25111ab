package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// forwarded is a server of which two ports are bound to a loopback address, in a pod whose inside is dialled.
type forwarded struct {
	t     *testing.T
	world *harness.World
	pod   harness.Pod
}

const (
	forwardedID = "forwarded"
	onLoopback4 = "127.0.0.1:7000" // echoes lines
	onLoopback6 = "[::1]:7001"     // speaks first
	onAll       = "7003"           // as the client says
	longWait    = 2 * time.Minute
)

// startForwarded starts it, with a setting's key and value if there is one.
func startForwarded(t *testing.T, daemon bool, setting ...string) *forwarded {
	t.Helper()
	settings := map[string]string{"mode": `"manual"`}
	if len(setting) == 2 {
		settings[setting[0]] = setting[1]
	}
	return startPod(t, daemon, settings, "-echo", onLoopback4, "-greet", onLoopback6, "-manners", ":"+onAll)
}

func startPod(t *testing.T, daemon bool, settings map[string]string, args ...string) *forwarded {
	t.Helper()
	return startContainer(t, daemon, settings, harness.Container{Image: "testserver", Args: append([]string{"/usr/bin/testserver"}, args...)}, "8080")
}

// startContainer is startPod with another program, which listens at a port.
func startContainer(t *testing.T, daemon bool, settings map[string]string, c harness.Container, port string) *forwarded {
	t.Helper()
	f := &forwarded{t: t, world: harness.New(t, harness.Options{Daemon: daemon, Settings: settings})}
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	var err error
	if f.pod, err = f.world.NewPod(ctx, forwardedID); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), longWait)
		defer cancel()
		if err := errors.Join(f.world.Remove(ctx, forwardedID), f.world.RemovePod(ctx, f.pod)); err != nil {
			t.Error(err)
		}
	})
	c.ID, c.NetNS, c.Detach = forwardedID, f.pod.Path, true
	if _, err := f.world.Run(ctx, c); err != nil {
		t.Fatal(err)
	}
	if err := f.world.WaitPort(ctx, net.JoinHostPort(f.pod.IP, port)); err != nil {
		t.Fatal(err)
	}
	return f
}

// inside connects from inside the pod's namespace, as containerd's port-forward does.
func (f *forwarded) inside(address string) net.Conn {
	f.t.Helper()
	c, err := f.dialInside(address)
	if err != nil {
		f.t.Fatal(err)
	}
	return c
}

func (f *forwarded) dialInside(address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	c, err := f.world.DialPod(ctx, f.pod.Path, "tcp", address)
	if err != nil {
		return nil, err
	}
	f.t.Cleanup(func() { c.Close() })
	return c, c.SetDeadline(time.Now().Add(longWait))
}

// says sends a text and wants an answer.
func (f *forwarded) says(c net.Conn, text, answer string) {
	f.t.Helper()
	if _, err := io.WriteString(c, text); err != nil {
		f.t.Fatal(err)
	}
	got := make([]byte, len(answer))
	if n, err := io.ReadFull(c, got); err != nil || string(got) != answer {
		f.t.Fatalf("%s: said %q, heard %q (%v), want %q", c.RemoteAddr(), text, got[:n], err, answer)
	}
}

func (f *forwarded) status() *shimv1.StatusResponse {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	s, err := f.world.Status(ctx, forwardedID)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// sleep waits until nothing hinders any more, and puts it to sleep, unless it sleeps.
func (f *forwarded) sleep() {
	f.t.Helper()
	if f.status().GetState() == "asleep" {
		return
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	if _, err := f.world.WaitState(ctx, forwardedID, "awake"); err != nil {
		f.t.Fatal(err)
	}
	for { // the end of a connection is use, and takes a moment to be over
		_, err := f.world.Hibernate(ctx, forwardedID)
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			f.t.Fatal(err)
		}
	}
}

// wokenBy wants one wake more than before, by a connection from inside.
func (f *forwarded) wokenBy(wakes uint64) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	s, err := f.world.WaitState(ctx, forwardedID, "awake")
	if err != nil {
		f.t.Fatal(err)
	}
	if last := s.GetLastWake(); s.GetWakes() != wakes || last.GetReason() != "port-forward" || last.GetOutcome() != "restored" {
		f.t.Fatalf("%d wakes, want %d; the last %s by %s (%s)", s.GetWakes(), wakes, last.GetOutcome(), last.GetReason(), last.GetDetail())
	}
}

// all are the ways in from inside the pod: servers on a loopback address of the sandbox's only, on all addresses, and by the
// pod's own address.
func (f *forwarded) all() map[string]func(net.Conn) {
	request := func(c net.Conn) {
		f.says(c, "GET /nowhere HTTP/1.0\r\n\r\n", "HTTP/1.0 404")
		if rest, err := io.ReadAll(c); err != nil || !strings.Contains(string(rest), "not found") {
			f.t.Errorf("%s: the rest is %q, %v", c.RemoteAddr(), rest, err)
		}
	}
	return map[string]func(net.Conn){
		onLoopback4: func(c net.Conn) {
			f.says(c, "a line\nand what", "a line\n")
			if err := c.(*net.TCPConn).CloseWrite(); err != nil {
				f.t.Error(err)
			}
			if rest, err := io.ReadAll(c); err != nil || string(rest) != "and what" {
				f.t.Errorf("after its end, %q, %v", rest, err)
			}
		},
		onLoopback6:                        func(c net.Conn) { f.says(c, "", "220 hello\n") },
		"127.0.0.1:8080":                   request,
		"[::1]:8080":                       request,
		net.JoinHostPort(f.pod.IP, "8080"): request,
	}
}

// Whoever is in the pod's namespace reaches the container by a loopback address or the pod's own, as port-forward does:
// awake, and asleep, which wakes it, with a daemon and without.
func TestPortForwardReachesEveryServer(t *testing.T) {
	for name, daemon := range map[string]bool{"daemon": true, "alone": false} {
		t.Run(name, func(t *testing.T) {
			f := startForwarded(t, daemon)
			wakes := uint64(0)
			for address, ask := range f.all() {
				c := f.inside(address)
				ask(c)
				c.Close()
				f.sleep()
				c = f.inside(address)
				ask(c)
				c.Close()
				wakes++
				f.wokenBy(wakes)
			}
		})
	}
}

// A crowd from inside is held while it wakes, once, and all are served.
func TestPortForwardIsHeld(t *testing.T) {
	f := startForwarded(t, true)
	f.sleep()
	conns := make([]net.Conn, 40) // more than processes are started for at once
	for i := range conns {
		conns[i] = f.inside(onLoopback4)
	}
	var all sync.WaitGroup
	for i, c := range conns {
		all.Go(func() {
			line := fmt.Sprintf("connection %d\n", i)
			_, err := io.WriteString(c, line)
			got := make([]byte, len(line))
			if err == nil {
				_, err = io.ReadFull(c, got)
			}
			if err != nil || string(got) != line {
				t.Errorf("connection %d: %q, %v", i, got, err)
			}
			c.Close() // for those that wait
		})
	}
	all.Wait()
	f.wokenBy(1)
}

// A connection from inside to a server that listens on the pod's address outlives sleep; one to the sandbox's loopback keeps
// it awake, as an exec does.
func TestPortForwardAndSleep(t *testing.T) {
	f := startForwarded(t, true)
	old := f.inside("127.0.0.1:" + onAll)
	f.says(old, "listen\n", "listen\n")
	for i := range uint64(2) {
		f.sleep()
		if _, err := io.WriteString(old, "more\n"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), longWait)
		s, err := f.world.WaitState(ctx, forwardedID, "awake")
		cancel()
		if err != nil || s.GetWakes() != i+1 || s.GetLastWake().GetReason() != "packet" {
			t.Fatalf("%d wakes, the last by %s, %v", s.GetWakes(), s.GetLastWake().GetReason(), err)
		}
	}
	if err := old.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if rest, err := io.ReadAll(old); err != nil || len(rest) > 0 {
		t.Errorf("at its end: %q, %v", rest, err)
	}

	c := f.inside(onLoopback4)
	f.says(c, "a line\n", "a line\n")
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
	if _, err := f.world.Hibernate(ctx, forwardedID); err == nil || !strings.Contains(err.Error(), "port-forward") {
		t.Errorf("with a connection to its loopback: %v", err)
	}
	if !slices.ContainsFunc(f.status().GetBlockers(), func(r *shimv1.Reason) bool { return r.GetCode() == "port-forward" }) {
		t.Errorf("nobody is told of it: %v", f.status().GetBlockers())
	}
	f.says(c, "it goes on\n", "it goes on\n")
	c.Close()
	f.sleep()
}

// A silent connection to the sandbox's loopback keeps it awake no longer than a silent exec, and ends when it sleeps.
func TestSilentPortForwardEndsWithSleep(t *testing.T) {
	f := startForwarded(t, true, "exec-idle-timeout", `"1s"`)
	c := f.inside(onLoopback6)
	f.says(c, "", "220 hello\n")
	f.sleep()
	if rest, err := io.ReadAll(c); err == nil && len(rest) > 0 {
		t.Errorf("at its end: %q", rest)
	}
	f.says(f.inside(onLoopback6), "", "220 hello\n")
	f.wokenBy(1)
}

// Where nothing listens, the connection is reset, and nobody is the worse for it.
func TestPortForwardToAClosedPort(t *testing.T) {
	f := startForwarded(t, true)
	for _, address := range []string{"127.0.0.1:9", "[::1]:9", net.JoinHostPort(f.pod.IP, "9")} {
		c, err := f.dialInside(address)
		if err == nil { // else the reset was sooner than the end of connect
			_, err = c.Read(make([]byte, 1))
		}
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: %v, not a reset", address, err)
		}
	}
	f.says(f.inside(onLoopback4), "a line\n", "a line\n")
}
