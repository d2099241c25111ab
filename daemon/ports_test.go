package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// connect opens a connection with a deadline.
func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	conn, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	return conn
}

func TestRepeatedHelloReplacesPorts(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	kept, keptFile := listener(t)
	dropped, droppedFile := listener(t)
	added, addedFile := listener(t)
	conn := n.register(shim, map[uint16]*os.File{1: keptFile, 2: droppedFile})
	onKept, onDropped := connect(t, kept), connect(t, dropped)
	for _, c := range []net.Conn{onKept, onDropped} {
		if err := speak(c); err != nil {
			t.Fatal(err)
		}
	}
	if err := hello(conn, shim, map[uint16]*os.File{1: keptFile, 3: addedFile}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]net.Conn{"a kept": onKept, "a dropped": onDropped} {
		if err := speak(c); err != nil {
			t.Errorf("an established connection of %s port: %v", name, err)
		}
	}
	for _, address := range []string{kept, added} {
		if err := roundTrip(address); err != nil {
			t.Error(err)
		}
	}
	late := connect(t, dropped)
	_ = late.SetDeadline(time.Now().Add(200 * time.Millisecond))
	if err := speak(late); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a connection to a dropped port should wait in the shim's backlog; got %v", err)
	}
}

// TestNewSocketOfTheSamePortReplaces: the shim made its listener anew.
func TestNewSocketOfTheSamePortReplaces(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	_, first := listener(t)
	address, second := listener(t)
	conn := n.register(shim, map[uint16]*os.File{1: first})
	if err := hello(conn, shim, map[uint16]*os.File{1: second}); err != nil {
		t.Fatal(err)
	}
	if err := roundTrip(address); err != nil {
		t.Error(err)
	}
}

func TestHelloOfAnotherWorkloadIsRefused(t *testing.T) {
	n := newNode(t)
	n.run()
	shim, other := shimtest.Start(t, "default", "redis"), shimtest.Start(t, "default", "nginx")
	address, file := listener(t)
	conn := n.register(shim, map[uint16]*os.File{1: file})
	if err := hello(conn, other, nil); err == nil {
		t.Error("taken")
	}
	if err := roundTrip(address); err != nil {
		t.Error("the earlier hello no longer holds:", err)
	}
}

// TestShimComesBack: a shim that registers again, with the same address or a new one, is served like the first time.
func TestShimComesBack(t *testing.T) {
	n := newNode(t)
	n.run()
	for i := range 3 {
		shim := shimtest.Start(t, "default", "redis")
		shim.State("asleep")
		address, file := listener(t) // its own: the one before may accept until the daemon sees its end
		conn := n.register(shim, map[uint16]*os.File{1: file})
		if err := roundTrip(address); err != nil {
			t.Fatal(err)
		}
		if got := len(shim.Wakes()); got == 0 {
			t.Errorf("shim %d was not asked to wake", i)
		}
		if i == 0 {
			_ = conn.Close() // the later ones replace one another
		}
	}
	if got := n.list(); len(got) != 1 || got["redis"].GetUnreachable() != "" {
		t.Errorf("view %v", got)
	}
}

// TestBlockedWakeResets: a workload that won't wake answers its callers; it does not hang them.
func TestBlockedWakeResets(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	shim.OnWake(func(context.Context) error {
		return fmt.Errorf("waits for a person: %w", errdefs.ErrFailedPrecondition)
	})
	address, file := listener(t)
	n.register(shim, map[uint16]*os.File{1: file})
	if err := roundTrip(address); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("got %v, want a reset", err)
	}
	metric(t, n, `hibernate_wake_call_errors_total 1`)
}

func TestFailedWakeIsTriedAgain(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	shim.State("asleep")
	failures := 2
	shim.OnWake(func(context.Context) error {
		if failures--; failures >= 0 {
			return errors.New("the disk had a hiccup")
		}
		return nil
	})
	address, file := listener(t)
	n.register(shim, map[uint16]*os.File{1: file})
	if err := roundTrip(address); err != nil {
		t.Error(err)
	}
}

func TestEndOfTheDaemonDrains(t *testing.T) {
	n := newNode(t)
	n.run()
	shim := shimtest.Start(t, "default", "redis")
	address, file := listener(t)
	n.register(shim, map[uint16]*os.File{1: file})
	finished, stuck := connect(t, address), connect(t, address)
	for _, c := range []net.Conn{finished, stuck} {
		if err := speak(c); err != nil {
			t.Fatal(err)
		}
	}
	_ = finished.(*net.TCPConn).CloseWrite()
	if _, err := finished.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a finished connection ends with %v", err)
	}
	n.halt()
	if _, err := stuck.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("a connection that outlives the grace ends with %v, want a reset", err)
	}
}
