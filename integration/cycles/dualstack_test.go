package cycles

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// visitors tells on TCP port 8000, of both families, who has come and how many before; it goes on to echo lines. On 8001 it
// does so for IPv4 alone. Datagrams to port 5300 come back.
const visitors = `
import socket, threading
count = 0
def serve(listener):
    global count
    while True:
        s, peer = listener.accept()
        count += 1
        threading.Thread(target=talk, args=(s, "%s %d\n" % (peer[0], count)), daemon=True).start()
def talk(s, hello):
    s.sendall(hello.encode())
    while True:
        data = s.recv(65536)
        if not data:
            return
        s.sendall(data)
def listen(family, address, port):
    s = socket.socket(family, socket.SOCK_STREAM)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind((address, port))
    s.listen()
    return s
for s in listen(socket.AF_INET6, "::", 8000), listen(socket.AF_INET, "0.0.0.0", 8001):
    threading.Thread(target=serve, args=(s,), daemon=True).start()
u = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
u.bind(("::", 5300))
while True:
    data, peer = u.recvfrom(2000)
    u.sendto(data, peer)
`

const (
	openPort, only4Port, datagramPort = "8000", "8001", "5300"
	client6                           = "fd99:1::2"
)

// A pod that CNI's bridge gives addresses of both families, or of IPv6 alone, wakes by IPv6 as by IPv4.
func TestDualStack(t *testing.T) {
	for gate, daemon := range map[string]bool{"held": true, "parked": false} {
		t.Run(gate, func(t *testing.T) {
			w := harness.New(t, harness.Options{Daemon: daemon, Settings: map[string]string{"mode": `"manual"`}})
			network6(t, w)
			for name, subnets := range map[string][]string{"both": {"10.77.0.0/24", "fd99:2::/64"}, "ipv6": {"fd99:3::/64"}} {
				t.Run(name, func(t *testing.T) { dualStack(t, w, gate, name, subnets) })
			}
		})
	}
}

// network6 gives the node and the client addresses of IPv6.
func network6(t *testing.T, w *harness.World) {
	t.Helper()
	shell(t, w, `
sysctl -qw net.ipv6.conf.all.forwarding=1
ip addr add fd99:1::1/64 dev client0 nodad
ip -n client addr add `+client6+`/64 dev eth0 nodad
ip -n client route add default via fd99:1::1`)
}

func shell(t *testing.T, w *harness.World, script string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := w.Shell(ctx, "set -e\n"+script)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// joinBridge has CNI's bridge plugin connect a fresh network namespace, and returns its addresses by family.
func joinBridge(t *testing.T, w *harness.World, name string, subnets []string) (path string, addresses map[bool]netip.Addr) {
	t.Helper()
	var ranges, routes []string
	for _, s := range subnets {
		ranges = append(ranges, fmt.Sprintf(`[{"subnet": %q}]`, s))
		everywhere := "0.0.0.0/0"
		if strings.Contains(s, ":") {
			everywhere = "::/0"
		}
		routes = append(routes, fmt.Sprintf(`{"dst": %q}`, everywhere))
	}
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "type": "bridge", "bridge": %q, "isGateway": true,
"ipam": {"type": "host-local", "ranges": [%s], "routes": [%s]}}`, name, "br-"+name, strings.Join(ranges, ","), strings.Join(routes, ","))
	path = "/run/netns/" + name
	plugin := func(command string) string {
		return fmt.Sprintf("CNI_COMMAND=%s CNI_CONTAINERID=%s CNI_NETNS=%s CNI_IFNAME=eth0 CNI_PATH=/opt/cni/bin /opt/cni/bin/bridge <<'END'\n%s\nEND\n",
			command, name, path, conf)
	}
	out := shell(t, w, "ip netns add "+name+"\nip -n "+name+" link set lo up\n"+plugin("ADD"))
	t.Cleanup(func() {
		if _, err := w.Shell(context.Background(), "set -e\n"+plugin("DEL")+"ip netns delete "+name+"\nip link delete br-"+name); err != nil {
			t.Error(err)
		}
	})
	var result struct {
		IPs []struct {
			Address netip.Prefix `json:"address"`
		} `json:"ips"`
	}
	if err := json.Unmarshal([]byte(out), &result); err != nil {
		t.Fatalf("the plugin said %q: %v", out, err)
	}
	addresses = map[bool]netip.Addr{}
	for _, ip := range result.IPs {
		addresses[ip.Address.Addr().Is6()] = ip.Address.Addr()
	}
	return path, addresses
}

func dualStack(t *testing.T, w *harness.World, gate, name string, subnets []string) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	id := "visitors-" + name
	path, addresses := joinBridge(t, w, name, subnets)
	six, four := addresses[true].String(), addresses[false]
	bundle, err := w.NewBundle(ctx, harness.Container{ID: id, Image: "python3"}, func(spec *specs.Spec) {
		spec.Process.Args = []string{"/usr/bin/python3", "-c", visitors}
		for i, ns := range spec.Linux.Namespaces {
			if ns.Type == specs.NetworkNamespace {
				spec.Linux.Namespaces[i].Path = path
			}
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.RemoveBundle(context.Background(), bundle); err != nil {
			t.Error(err)
		}
	}()
	if err := w.RunBundle(ctx, bundle, "--null-io"); err != nil {
		t.Fatal(err)
	}
	if err := w.WaitPort(ctx, net.JoinHostPort(six, openPort)); err != nil {
		t.Fatal(err)
	}
	s := &server{program: program{image: id}, world: w, id: id, http: w.HTTP()}
	old := visit(t, w, six, openPort, client6)
	u := datagramsTo(t, w, six, datagramPort)
	echoed(t, u)
	wakes := 0
	wake := func(reason string) {
		t.Helper()
		wakes++
		woken(t, s, reason, wakes)
	}
	by := map[string]string{"held": "connection", "parked": "packet"}[gate]
	for range 2 {
		sleep(t, s)
		for question, answer := range answers6(ctx, w, six) {
			if answer != question[:strings.Index(question, ":")] {
				t.Errorf("asleep: %s, and %s", question, answer)
			}
		}
		visit(t, w, six, openPort, client6)
		wake(by)
		sleep(t, s)
		old.send(t, "still there\n")
		if line := old.line(t); line != "still there" {
			t.Fatalf("echo %q", line)
		}
		wake("packet")
		sleep(t, s)
		echoed(t, u)
		wake("packet")
		for _, loopback := range []string{"::1", "127.0.0.1"} { // of the pod's namespace, as port-forward comes
			sleep(t, s)
			forwarded(t, w, path, loopback)
			wake("port-forward")
		}
		if !four.IsValid() {
			continue
		}
		for _, port := range []string{openPort, only4Port} {
			sleep(t, s)
			visit(t, w, four.String(), port, w.ClientIP())
			wake(by)
		}
	}
}

// forwarded wants the server to speak to who connects in the pod's namespace.
func forwarded(t *testing.T, w *harness.World, path, loopback string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	c, err := w.DialPod(ctx, path, "tcp", net.JoinHostPort(loopback, openPort))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	if hello, err := bufio.NewReader(c).ReadString('\n'); err != nil {
		t.Fatalf("from %s: %q, %v", loopback, hello, err)
	}
}

// visit connects, and looks that the server sees the client's own address.
func visit(t *testing.T, w *harness.World, ip, port, from string) *conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), answerTimeout)
	defer cancel()
	c, err := w.Dial(ctx, "tcp", net.JoinHostPort(ip, port))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	v := &conn{Conn: c, in: bufio.NewReader(c)}
	if err := c.SetDeadline(time.Now().Add(answerTimeout)); err != nil {
		t.Fatal(err)
	}
	hello := v.line(t)
	if seen, _, _ := strings.Cut(hello, " "); strings.TrimPrefix(seen, "::ffff:") != from {
		t.Fatalf("the server sees %q, not %s", hello, from)
	}
	return v
}

// answers6 are to questions that need no server, by what they should be.
func answers6(ctx context.Context, w *harness.World, ip string) map[string]string {
	out := map[string]string{}
	for question, q := range map[string]struct{ network, address, say string }{
		"refused: a closed port":    {"tcp", net.JoinHostPort(ip, unused), ""},
		"refused: a port of IPv4's": {"tcp", net.JoinHostPort(ip, only4Port), ""},
		"answered: echo":            {"ip6:ipv6-icmp", ip, "\x80\x00\x00\x00\x42\x42\x00\x01"},
	} {
		c, err := w.Dial(ctx, q.network, q.address)
		if err == nil && q.say != "" {
			err = answer(c, q.say)
		}
		if c != nil {
			c.Close()
		}
		switch {
		case err == nil:
			out[question] = "answered"
		case errors.Is(err, unix.ECONNREFUSED):
			out[question] = "refused"
		default:
			out[question] = err.Error()
		}
	}
	return out
}
