package cycles

import (
	"bufio"
	"context"
	"errors"
	"net"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// datagrams echoes on UDP port 5300, on 5301 for the first who comes only, and on 5302 with a socket of IPv6. It listens on
// TCP port 8000.
const datagrams = `
import select, socket
listener = socket.create_server(("", 8000))
many, one = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
many.bind(("", 5300))
one.bind(("", 5301))
six = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
six.bind(("::", 5302))
known = False
while True:
    for s in select.select([many, one, six, listener], [], [])[0]:
        if s is listener:
            s.accept()[0].close()
            continue
        data, peer = s.recvfrom(2000)
        if s is one and not known:
            one.connect(peer)
            known = True
        s.send(data) if s is one else s.sendto(data, peer)
`

// unused is a port that nobody in the container has.
const unused = "9999"

// Closed ports of TCP and echo are answered for a sleeper, as it answers awake; datagrams wake it.
func TestClosedPorts(t *testing.T) {
	for gate, daemon := range map[string]bool{"held": true, "parked": false} {
		t.Run(gate, func(t *testing.T) {
			w := harness.New(t, harness.Options{Daemon: daemon, Settings: map[string]string{"mode": `"manual"`}})
			closedPorts(t, w, gate)
		})
	}
}

func closedPorts(t *testing.T, w *harness.World, gate string) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	const id = "datagrams"
	pod, err := w.NewPod(ctx, "closed")
	if err != nil {
		t.Fatal(err)
	}
	ip := pod.IP
	bundle, err := w.NewBundle(ctx, harness.Container{ID: id, Image: "python3"}, func(spec *specs.Spec) {
		spec.Process.Args = []string{"/usr/bin/python3", "-c", datagrams}
		for i, ns := range spec.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace {
				spec.Linux.Namespaces[i].Path = pod.Path
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := errors.Join(w.RemoveBundle(context.Background(), bundle), w.RemovePod(context.Background(), pod)); err != nil {
			t.Error(err)
		}
	}()
	if err := w.RunBundle(ctx, bundle, "--null-io"); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitPort(ctx, net.JoinHostPort(ip, "8000")); err != nil {
		t.Fatal(err)
	}
	many, one, six := datagramsTo(t, w, ip, "5300"), datagramsTo(t, w, ip, "5301"), datagramsTo(t, w, ip, "5302")
	echoed(t, many)
	echoed(t, one)
	echoed(t, six)
	awake := answers(ctx, w, ip)
	for question, answer := range awake {
		if answer != "refused" && answer != "answered" {
			t.Fatalf("awake: %s: %s", question, answer)
		}
	}
	s := &server{program: program{image: id}, world: w, id: id, http: w.HTTP()}
	for i, bound := range []net.Conn{many, one, six} {
		sleep(t, s)
		for question, answer := range answers(ctx, w, ip) {
			if answer != awake[question] {
				t.Errorf("asleep: %s: %s, and awake %s", question, answer, awake[question])
			}
		}
		status, err := w.Status(ctx, id)
		if err != nil {
			t.Fatal(err)
		}
		if status.GetState() != "asleep" || status.GetGate() != gate || status.GetWakes() != uint64(i) {
			t.Errorf("%s after %d wakes, the gate %s", status.GetState(), status.GetWakes(), status.GetGate())
		}
		echoed(t, bound)
		woken(t, s, "packet", i+1)
	}
}

func datagramsTo(t *testing.T, w *harness.World, ip, port string) net.Conn {
	t.Helper()
	c, err := w.Dial(t.Context(), "udp", net.JoinHostPort(ip, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// echoed sends one datagram, and hears it come back.
func echoed(t *testing.T, u net.Conn) {
	t.Helper()
	c := &conn{Conn: u, in: bufio.NewReader(u)}
	c.send(t, "a datagram\n")
	if line := c.line(t); line != "a datagram" {
		t.Fatalf("echo %q", line)
	}
}

// answers tells what is said to questions that need no server.
func answers(ctx context.Context, w *harness.World, ip string) map[string]string {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	out := map[string]string{}
	for from, dial := range map[string]func(context.Context, string, string) (net.Conn, error){"another host": w.Dial, "the node": w.DialNode} {
		for question, q := range map[string]struct{ network, address, say string }{
			"connect": {"tcp", net.JoinHostPort(ip, unused), ""},
			"echo":    {"ip4:icmp", ip, "\x08\x00\xb5\xbc\x42\x42\x00\x01"},
		} {
			c, err := dial(ctx, q.network, q.address)
			if err == nil && q.say != "" {
				err = answer(c, q.say)
			}
			if c != nil {
				c.Close()
			}
			switch {
			case err == nil:
				out[question+" from "+from] = "answered"
			case errors.Is(err, unix.ECONNREFUSED):
				out[question+" from "+from] = "refused"
			default:
				out[question+" from "+from] = err.Error()
			}
		}
	}
	return out
}

func answer(c net.Conn, say string) error {
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := c.Write([]byte(say)); err != nil {
		return err
	}
	_, err := c.Read(make([]byte, 100))
	return err
}
