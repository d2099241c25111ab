package network

import (
	"context"
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
	f := startContainer(t, true, map[string]string{"mode": `"manual"`},
		harness.Container{Image: "python3", Args: []string{"/usr/bin/python3", "-c", fickle}}, "8001")
	ctx, cancel := context.WithTimeout(t.Context(), longWait)
	defer cancel()
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
