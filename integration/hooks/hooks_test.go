package hooks

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// defaultCache is where CNI's library keeps results.
const defaultCache = "/var/lib/cni"

func newWorld(t *testing.T) *harness.World {
	return harness.New(t, harness.Options{Daemon: true, Published: true, Settings: map[string]string{"mode": `"manual"`}})
}

// Whoever connects to a published port wakes the sleeper behind it, from wherever the plugins let him, and so does who
// has a connection open. The hooks are run once each.
func TestPublishedPortsWake(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]struct {
		cache string
		known bool // the mappings are where the shim looks for them
	}{
		"cached": {defaultCache, true}, "cached-elsewhere": {filepath.Join(w.Dir, "cache"), false},
	} {
		t.Run(name, func(t *testing.T) {
			a := newApp(t, w, name, c.cache)
			a.start()
			if got, want := a.mappings(), a.published(); c.known != reflect.DeepEqual(got, want) {
				t.Errorf("the shim has found %v", got)
			}
			a.hairpin()
			a.cycles()
			a.sleep()
			a.hasCalled("createRuntime")
			if _, err := a.Ctr(a.context(), "tasks", "delete", "--force", a.id); err != nil {
				t.Fatal(err)
			}
			a.hasCalled("createRuntime postStop")
			a.gone()
		})
	}
}

// hairpin: the container itself reaches what it publishes, through the node.
func (a *app) hairpin() {
	a.t.Helper()
	got, err := a.Exec(a.context(), a.id, "wget", "-qO-", "http://"+a.address(a.NodeIP(), a.http)+"/")
	if err != nil || strings.TrimSpace(got) != "hello" {
		a.t.Fatalf("%q, %v", got, err)
	}
}

// cycles are three sleeps that new connections end, each from another place, three that an old one ends, and one that a
// datagram ends.
func (a *app) cycles() {
	a.t.Helper()
	old, err := a.Dial(a.context(), "tcp", a.address(a.NodeIP(), a.echo))
	if err != nil {
		a.t.Fatal(err)
	}
	defer old.Close()
	answers := bufio.NewReader(old)
	neighbour, leave := a.neighbour()
	defer leave()
	wakes := uint64(0)
	for i, caller := range []struct {
		from dial
		host string
	}{{a.Dial, a.NodeIP()}, {a.DialNode, "127.0.0.1"}, {neighbour, a.NodeIP()}} {
		a.sleep()
		if got, want := a.count(caller.from, caller.host), fmt.Sprint(i+1); got != want {
			a.t.Errorf("caller %d: the counter says %s, want %s", i, got, want)
		}
		wakes++
		a.woken(wakes)
		a.sleep()
		a.says(old, answers, fmt.Sprintf("line %d\n", i))
		wakes++
		a.woken(wakes)
	}
	a.sleep()
	a.datagram()
	a.woken(wakes + 1)
}

// datagram is one to a published port, and its echo.
func (a *app) datagram() {
	a.t.Helper()
	c, err := a.Dial(a.context(), "udp", a.address(a.NodeIP(), a.datagrams))
	if err != nil {
		a.t.Fatal(err)
	}
	defer c.Close()
	a.says(c, bufio.NewReader(c), "a datagram\n")
}

// says sends a line and waits for its echo.
func (a *app) says(c net.Conn, answers *bufio.Reader, line string) {
	a.t.Helper()
	if err := c.SetDeadline(time.Now().Add(limit)); err != nil {
		a.t.Fatal(err)
	}
	if _, err := c.Write([]byte(line)); err != nil {
		a.t.Fatal(err)
	}
	if got, err := answers.ReadString('\n'); err != nil || got != line {
		a.t.Fatalf("%q comes back as %q (%v)", line, got, err)
	}
}

// neighbour is somebody on the same bridge, whose packets must leave by the port that they came from or be masqueraded.
func (a *app) neighbour() (dial, func()) {
	a.t.Helper()
	const name = "neighbour"
	cni, list, err := a.CNI()
	if err != nil {
		a.t.Fatal(err)
	}
	conf := &libcni.RuntimeConf{ContainerID: a.Name + "-" + name, NetNS: "/run/netns/" + name, IfName: "eth0"}
	if _, err := a.Output(a.context(), "ip", "netns", "add", name); err != nil {
		a.t.Fatal(err)
	}
	if _, err := cni.AddNetworkList(a.context(), list, conf); err != nil {
		a.t.Fatal(err)
	}
	from := func(ctx context.Context, network, address string) (net.Conn, error) {
		return a.DialPod(ctx, conf.NetNS, network, address)
	}
	return from, func() {
		if err := cni.DelNetworkList(a.context(), list, conf); err != nil {
			a.t.Error(err)
		}
		if _, err := a.Output(a.context(), "ip", "netns", "delete", name); err != nil {
			a.t.Error(err)
		}
	}
}

// A shim that dies takes neither its container's network nor its published ports along for ever: `delete` runs the hooks
// with the state that they need, each of them though one fails, and the container can be started again.
func TestHooksAfterShimsDeath(t *testing.T) {
	w := newWorld(t)
	broken := specs.Hook{Path: "/bin/sh", Args: []string{"sh", "-c", "echo broken >&2; exit 1"}}
	a := newApp(t, w, "orphan", defaultCache, broken)
	a.start()
	record, err := a.Record(a.id)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(record.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	a.shimGone(record.Bundle)
	a.hasCalled("createRuntime postStop")
	a.gone()
	if _, err := a.Ctr(a.context(), "tasks", "start", "--detach", "--null-io", a.id); err != nil {
		t.Fatal(err)
	}
	a.answers()
	if _, err := a.Ctr(a.context(), "tasks", "delete", "--force", a.id); err != nil {
		t.Fatal(err)
	}
	a.hasCalled("createRuntime postStop createRuntime postStop")
	a.gone()
}
