package network

import (
	"context"
	"errors"
	"net"
	"testing"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// fickle serves on port 8000, and ends its listener of port 8001 for two seconds whenever a client says so there.
const fickle = `
import socket, time
def listen(port):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(("0.0.0.0", port))
    s.listen(100)
    return s
first, second = listen(8000), listen(8001)
while True:
    c, _ = first.accept()
    if c.recv(100).startswith(b"end"):
        second.close()
        c.sendall(b"ended\n")
        c.close()
        time.sleep(2)
        second = listen(8001)
    else:
        c.sendall(b"here\n")
        c.close()
`

// A listener that the workload itself has ended since it woke is named by the ladder, on every cycle, and nothing is repaired.
func TestEndedListenerIsTold(t *testing.T) {
	f := &forwarded{t: t, world: harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"mode": `"manual"`}})}
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
	if _, err := f.world.Run(ctx, harness.Container{
		ID: forwardedID, Image: "python3", NetNS: f.pod.Path, Detach: true, Args: []string{"/usr/bin/python3", "-c", fickle},
	}); err != nil {
		t.Fatal(err)
	}
	if err := f.world.WaitPort(ctx, net.JoinHostPort(f.pod.IP, "8001")); err != nil {
		t.Fatal(err)
	}
	told := 0
	for range 12 { // on a busy machine the ladder may be climbed before the program has ended it
		f.sleep()
		if got := f.asks(f.world.Dial, "8000", "end\n"); got != "ended\n" {
			t.Fatalf("it says %q", got)
		}
		if r := f.rung("listeners"); !r.GetOk() {
			if r.GetRepaired() || r.GetDetail() != "refused: the workload has ended its listeners of ports [8001]" {
				t.Fatalf("the ladder tells %v", r)
			}
			if told++; told == 3 {
				return
			}
		}
		if err := f.world.WaitPort(ctx, net.JoinHostPort(f.pod.IP, "8001")); err != nil {
			t.Fatal(err)
		}
	}
	t.Errorf("told %d times", told)
}

// rung waits for the ladder of the last wake, and returns one of its rungs.
func (f *forwarded) rung(name string) *shimv1.Rung {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), longWait)
	defer cancel()
	for ctx.Err() == nil {
		for _, r := range f.status().GetLastWake().GetLadder() {
			if r.GetName() == name {
				return r
			}
		}
	}
	f.t.Fatalf("the ladder has no rung %s", name)
	return nil
}
