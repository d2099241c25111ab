package hooks

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// The stand-in hook is this test's own binary, started by the shim with the event in its environment. It does what an
// engine's hook does that makes a container's network: it knows the container by its annotations alone.
const (
	eventKey = "HIBERNATE_TEST_HOOK" // the event, in the environment

	dirKey   = "hibernate.test/dir"   // where it keeps account, by annotation
	idKey    = "hibernate.test/id"    // the container, to CNI
	cacheKey = "hibernate.test/cache" // of CNI's results
	portsKey = "hibernate.test/ports" // published, as JSON
)

// names of the files in its directory.
const (
	calls    = "calls"    // a line for each, written first
	reserver = "reserver" // pid
)

func TestMain(m *testing.M) {
	event := os.Getenv(eventKey)
	if event == "" {
		os.Exit(m.Run())
	}
	if err := hook(event); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// mapping is a published port.
type mapping struct {
	HostPort      int    `json:"hostPort"`
	ContainerPort int    `json:"containerPort"`
	Protocol      string `json:"protocol"`
}

func hook(event string) error {
	var state specs.State
	if err := json.NewDecoder(os.Stdin).Decode(&state); err != nil {
		return fmt.Errorf("state: %w", err)
	}
	h := standIn{dir: state.Annotations[dirKey], cache: state.Annotations[cacheKey], id: state.Annotations[idKey]}
	if h.dir == "" || h.cache == "" || h.id == "" {
		return fmt.Errorf("the annotations don't tell the container: %v", state.Annotations)
	}
	if err := h.record(event); err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(state.Annotations[portsKey]), &h.ports); err != nil {
		return fmt.Errorf("ports: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	switch event {
	case "createRuntime":
		return h.create(ctx, state.Pid)
	case "postStop":
		return h.stop(ctx)
	}
	return fmt.Errorf("no such event: %s", event)
}

type standIn struct {
	dir, cache, id string
	ports          []mapping
}

func (h standIn) record(event string) error {
	f, err := os.OpenFile(filepath.Join(h.dir, calls), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(event + "\n")
	return errors.Join(err, f.Close())
}

// create attaches the namespace of the process that it is told of. What an earlier life has left goes first.
func (h standIn) create(ctx context.Context, pid int) error {
	if err := h.reserve(); err != nil {
		return fmt.Errorf("reserve ports: %w", err)
	}
	if err := h.detach(ctx); err != nil {
		return err
	}
	return h.each(func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
		conf.NetNS = fmt.Sprintf("/proc/%d/ns/net", pid)
		_, err := c.AddNetworkList(ctx, list, conf)
		return err
	})
}

func (h standIn) stop(ctx context.Context) error {
	if err := h.detach(ctx); err != nil {
		return err
	}
	data, err := os.ReadFile(filepath.Join(h.dir, reserver))
	if err != nil {
		return err
	}
	pid, err := strconv.Atoi(string(data))
	if err != nil {
		return err
	}
	p, err := os.FindProcess(pid)
	if err != nil {
		return err
	}
	return p.Kill()
}

// detach is DEL without a namespace: at the end there is none any more.
func (h standIn) detach(ctx context.Context) error {
	return h.each(func(c *libcni.CNIConfig, list *libcni.NetworkConfigList, conf *libcni.RuntimeConf) error {
		return c.DelNetworkList(ctx, list, conf)
	})
}

const loopback = `{"cniVersion": "1.0.0", "name": "loopback", "plugins": [{"type": "loopback"}]}`

// each calls do for both networks.
func (h standIn) each(do func(*libcni.CNIConfig, *libcni.NetworkConfigList, *libcni.RuntimeConf) error) error {
	lo, err := libcni.ConfListFromBytes([]byte(loopback))
	if err != nil {
		return err
	}
	node, err := libcni.ConfListFromFile("/etc/cni/net.d/10-world.conflist")
	if err != nil {
		return err
	}
	c := libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, h.cache, nil)
	if err := do(c, lo, &libcni.RuntimeConf{ContainerID: h.id, IfName: "lo"}); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	conf := &libcni.RuntimeConf{ContainerID: h.id, IfName: "eth0", CapabilityArgs: map[string]any{"portMappings": h.ports}}
	if err := do(c, node, conf); err != nil {
		return fmt.Errorf("%s: %w", node.Name, err)
	}
	return nil
}

// reserve leaves a process behind that holds the published ports, so that nobody else listens there.
func (h standIn) reserve() error {
	cmd := exec.Command("sleep", "infinity")
	for _, p := range h.ports {
		l, err := net.Listen("tcp4", fmt.Sprintf(":%d", p.HostPort))
		if err != nil {
			return err
		}
		defer l.Close()
		f, err := l.(*net.TCPListener).File()
		if err != nil {
			return err
		}
		defer f.Close()
		cmd.ExtraFiles = append(cmd.ExtraFiles, f)
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(h.dir, reserver), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600)
}

// called are the hook's calls so far.
func (a *app) called() string {
	a.t.Helper()
	data, err := os.ReadFile(filepath.Join(a.dir, calls))
	if err != nil {
		a.t.Fatal(err)
	}
	return strings.Join(strings.Fields(string(data)), " ")
}

func (a *app) hasCalled(want string) {
	a.t.Helper()
	if got := a.called(); got != want {
		a.t.Fatalf("hooks were called: %s; want %s", got, want)
	}
}
