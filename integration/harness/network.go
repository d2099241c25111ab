package harness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
)

// subnets of a world, as the first three bytes of a /24. Nobody outside can see them; they differ so that no test depends
// on one.
type subnets struct{ pods, client, plain string }

func randomSubnets() subnets {
	x, y := 64+rand.IntN(128), 4*rand.IntN(60)
	at := func(i int) string { return fmt.Sprintf("10.%d.%d", x, y+i) }
	return subnets{at(0), at(1), at(2)}
}

// ClientIP is the address that the client's connections come from; NodeIP is the node's towards pods on CNI's bridge.
func (w *World) ClientIP() string { return w.subnets.client + ".2" }
func (w *World) NodeIP() string   { return w.subnets.pods + ".1" }

// Dial connects as the client: a host elsewhere, whose address is none of the node's. Addresses are literal.
func (w *World) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	return w.dialFrom(ctx, w.Path("/run/netns/client"), network, address)
}

// NodeNetNS is the path of the node's network namespace, for the test process.
func (w *World) NodeNetNS() string { return fmt.Sprintf("/proc/%d/ns/net", w.anchor.pid()) }

// DialNode connects from the node itself, as kubelet's probes do.
func (w *World) DialNode(ctx context.Context, network, address string) (net.Conn, error) {
	return w.dialFrom(ctx, w.NodeNetNS(), network, address)
}

// DialPod connects from inside a network namespace that the world's programs know by path.
func (w *World) DialPod(ctx context.Context, path, network, address string) (net.Conn, error) {
	return w.dialFrom(ctx, w.Path(path), network, address)
}

func (w *World) dialFrom(ctx context.Context, netns, network, address string) (conn net.Conn, err error) {
	// A socket stays in the namespace of the thread that made it.
	nsErr := ns.WithNetNSPath(netns, func(ns.NetNS) error {
		var d net.Dialer
		conn, err = d.DialContext(ctx, network, address)
		return nil
	})
	if nsErr != nil {
		return nil, fmt.Errorf("enter %s: %w", netns, nsErr)
	}
	return conn, err
}

// HTTP is a client that connects as Dial does, anew for each request.
func (w *World) HTTP() *http.Client {
	return &http.Client{
		Timeout:   time.Minute,
		Transport: &http.Transport{DialContext: w.Dial, DisableKeepAlives: true, DisableCompression: true},
	}
}

// WaitPort waits until a TCP port accepts the client's connections, as a server's does a while after its start.
func (w *World) WaitPort(ctx context.Context, address string) error {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	return poll(ctx, 5*time.Millisecond, func() (bool, error) {
		c, err := w.Dial(ctx, "tcp", address)
		if err != nil {
			return false, err
		}
		return true, c.Close()
	})
}

// A Pod is a network namespace with an address on a bridge without CNI.
type Pod struct {
	Name string
	Path string // inside the world: what `ctr run --with-ns network:` wants
	IP   string
}

// NewPod makes a network namespace. It is removed with RemovePod, or with the world.
func (w *World) NewPod(ctx context.Context, name string) (Pod, error) {
	path, err := w.addNamespace(ctx, name)
	if err != nil {
		return Pod{}, err
	}
	w.mu.Lock()
	w.pods++
	host := w.pods + 1
	w.mu.Unlock()
	p := Pod{Name: name, Path: path, IP: fmt.Sprintf("%s.%d", w.subnets.plain, host)}
	_, err = w.Shell(ctx, fmt.Sprintf(`
ip link add veth%[1]d type veth peer name eth0 netns %[2]s
ip link set veth%[1]d master plain0
ip link set veth%[1]d up
ip -n %[2]s link set lo up
ip -n %[2]s addr add %[3]s/24 dev eth0
ip -n %[2]s link set eth0 up
ip -n %[2]s route add default via %[4]s.1`, host, name, p.IP, w.subnets.plain))
	return p, err
}

// RemovePod removes the namespace and, with it, both ends of its link.
func (w *World) RemovePod(ctx context.Context, p Pod) error {
	_, err := w.Output(ctx, "ip", "netns", "delete", p.Name)
	return err
}

func (w *World) addNamespace(ctx context.Context, name string) (string, error) {
	_, err := w.Output(ctx, "ip", "netns", "add", name)
	return "/run/netns/" + name, err
}

// A namespace is an open network namespace; it lives while it is open. A nil one is none.
type namespace struct{ file *os.File }

// openNamespace opens a process's; none when there is no such process.
func openNamespace(pid int) (*namespace, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	return &namespace{f}, err
}

// path is where other processes find it.
func (n *namespace) path() string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n.file.Fd())
}

func (n *namespace) Close() error {
	if n == nil {
		return nil
	}
	return n.file.Close()
}
