package daemon_test

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/api/handover"
	"github.com/hibernate-runtime/hibernate/daemon"
	"github.com/hibernate-runtime/hibernate/daemon/drainer"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient/shimtest"
)

// beDrainer carries on what it is told to.
func beDrainer([]string) error {
	return drainer.Run(context.Background(), os.Stdin, slog.New(slog.NewTextHandler(os.Stderr, nil)))
}

// drained is a daemon whose connections are carried on by a process of the test's, and two connections through it.
type drained struct {
	*node
	t       *testing.T
	shim    *shimtest.Shim
	file    *os.File
	address string
	process chan *os.Process
}

func newDrained(t *testing.T, limit time.Duration) *drained {
	t.Helper()
	d := &drained{node: newNode(t), t: t, process: make(chan *os.Process, 1)}
	d.change = func(o *daemon.Options) {
		o.CarryOn = func(all []drainer.Workload) error {
			starter := drainer.Starter{Path: "/proc/self/exe", Args: []string{"drainer"}, RunDir: d.runDir, Limit: limit}
			t.Setenv(playing, "drainer")
			process, err := starter.Start(all)
			if err == nil {
				d.process <- process
			}
			return err
		}
	}
	d.run()
	d.shim = shimtest.Start(t, "default", "redis")
	start, err := handover.StartTime(os.Getpid())
	if err == nil {
		err = handover.WriteRecord(d.runDir, handover.Record{
			Namespace: "default", ID: "redis", Address: d.shim.Address, Pid: os.Getpid(), StartTime: start,
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	d.address, d.file = listener(t)
	d.register(d.shim, map[uint16]*os.File{1: d.file})
	return d
}

// connect opens a connection that is answered.
func (d *drained) connect() net.Conn {
	d.t.Helper()
	c := connect(d.t, d.address)
	if err := speak(c); err != nil {
		d.t.Fatal(err)
	}
	return c
}

// drainerEnds waits for the drainer's end, in order.
func (d *drained) drainerEnds() {
	d.t.Helper()
	process := <-d.process
	done := make(chan error, 1)
	go func() {
		state, err := process.Wait()
		if err == nil && !state.Success() {
			err = errors.New(state.String())
		}
		done <- err
	}()
	select {
	case err := <-done:
		if err != nil {
			d.t.Error("the drainer:", err)
		}
	case <-time.After(20 * time.Second):
		_ = process.Kill()
		d.t.Error("the drainer doesn't end")
	}
}

// Connections outlive a daemon that ends in order, beside the next one, which takes all that is new; the process that carries
// them on ends with them.
func TestConnectionsOutliveTheDaemon(t *testing.T) {
	d := newDrained(t, time.Hour)
	idle, half := d.connect(), d.connect()
	_ = half.(*net.TCPConn).CloseWrite()
	if _, err := half.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatal("a half-closed connection:", err)
	}
	d.halt()
	for range 3 {
		if err := speak(idle); err != nil {
			t.Fatal("without a daemon:", err)
		}
	}
	d.run()
	d.register(d.shim, map[uint16]*os.File{1: d.file})
	fresh := d.connect()
	if err := speak(idle); err != nil {
		t.Fatal("beside the next daemon:", err)
	}
	_ = idle.Close()
	d.drainerEnds()
	if err := speak(fresh); err != nil {
		t.Error("a connection of the next daemon's:", err)
	}
	_ = fresh.Close()
}

// They end with the workload's shim, and with the limit.
func TestCarriedConnectionsAreReset(t *testing.T) {
	for name, limit := range map[string]time.Duration{"the shim goes": time.Hour, "the limit is over": time.Second} {
		t.Run(name, func(t *testing.T) {
			d := newDrained(t, limit)
			c := d.connect()
			d.halt()
			if limit == time.Hour {
				if err := speak(c); err != nil {
					t.Fatal(err)
				}
				if err := handover.RemoveRecord(d.runDir, "default", "redis"); err != nil {
					t.Fatal(err)
				}
			}
			_ = c.SetDeadline(time.Now().Add(20 * time.Second))
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
				t.Errorf("it ends with %v, want a reset", err)
			}
			d.drainerEnds()
		})
	}
}
