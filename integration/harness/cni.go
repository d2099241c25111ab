package harness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
)

const (
	cniNetwork = "world"
	cniCache   = "/var/lib/cni"
	// ipamDir is host-local's default place.
	ipamDir = "/var/lib/cni/networks/" + cniNetwork
)

// conflist is a usual node's: bridge, host-local, portmap, firewall. Without masquerading: `ctr tasks kill` calls DEL without
// a network namespace, and the bridge plugin then leaves its rules.
func (w *World) conflist() []byte {
	return fmt.Appendf(nil, `{
  "cniVersion": "1.0.0",
  "name": %q,
  "plugins": [
    {
      "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": "%s.0/24"}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    },
    {"type": "portmap", "capabilities": {"portMappings": true}},
    {"type": "firewall"}
  ]
}
`, cniNetwork, w.subnets.pods)
}

// CNI returns libcni's client for the world's network: plugins run inside the world. portMappings and the like are given
// as capability arguments of the runtime configuration.
func (w *World) CNI() (*libcni.CNIConfig, *libcni.NetworkConfigList, error) {
	return w.CNIOf(w.conflist())
}

// CNIOf is CNI for another network, by its list of plugins. Those of .tools/cni can be named.
func (w *World) CNIOf(conflist []byte) (*libcni.CNIConfig, *libcni.NetworkConfigList, error) {
	list, err := libcni.ConfListFromBytes(conflist)
	if err != nil {
		return nil, nil, err
	}
	run := &pluginRunner{world: w}
	return libcni.NewCNIConfigWithCacheDir([]string{"/opt/cni/bin"}, w.Path(cniCache), run), list, nil
}

// A pluginRunner executes CNI plugins inside the world.
type pluginRunner struct {
	version.PluginDecoder
	world *World
}

var _ invoke.Exec = (*pluginRunner)(nil)

func (r *pluginRunner) ExecPlugin(ctx context.Context, path string, stdin []byte, env []string) ([]byte, error) {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd := r.world.Command(ctx, path)
	cmd.Env = append(env, "PATH="+r.world.searchPath())
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%s: %w: %s%s", path, errors.Join(err, ctx.Err()), stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

func (r *pluginRunner) FindInPath(plugin string, _ []string) (string, error) {
	return "/opt/cni/bin/" + plugin, nil
}

// runtimeConf is ctr's for a container.
func (w *World) runtimeConf(id, netns string) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: w.Name + "-" + id, NetNS: netns, IfName: "eth0"}
}

// IP is the address that CNI gave to a container.
func (w *World) IP(_ context.Context, id string) (string, error) {
	result, err := w.cached(id)
	if err != nil {
		return "", err
	}
	if len(result.IPs) == 0 {
		return "", fmt.Errorf("CNI gave no address to %s", id)
	}
	return result.IPs[0].Address.IP.String(), nil
}

func (w *World) cached(id string) (*types100.Result, error) {
	cni, list, err := w.CNI()
	if err != nil {
		return nil, err
	}
	r, err := cni.GetNetworkListCachedResult(list, w.runtimeConf(id, ""))
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, fmt.Errorf("container %s has no network by CNI", id)
	}
	return types100.NewResultFromResult(r)
}

// removeNetwork is CNI's DEL, which `ctr run --detach --cni` leaves to others. Nothing to do is no error.
func (w *World) removeNetwork(ctx context.Context, id, netns string) error {
	if _, err := w.cached(id); err != nil {
		return nil
	}
	cni, list, err := w.CNI()
	if err != nil {
		return err
	}
	if err := cni.DelNetworkList(ctx, list, w.runtimeConf(id, netns)); err != nil {
		return err
	}
	lo := filepath.Join(w.Path(cniCache), "results", "cni-loopback-"+w.Name+"-"+id+"-lo")
	if err := os.Remove(lo); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// warmNetwork attaches and detaches a network namespace once: the bridge and the plugins' shared chains stay, as on every
// node that ever ran a container, and don't count as left behind.
func (w *World) warmNetwork(ctx context.Context) error {
	const id = "warm"
	pod, err := w.addNamespace(ctx, id)
	if err != nil {
		return err
	}
	cni, list, err := w.CNI()
	if err != nil {
		return err
	}
	conf := w.runtimeConf(id, pod)
	if w.options.Published {
		conf.CapabilityArgs = map[string]any{"portMappings": []map[string]any{{"hostPort": 1, "containerPort": 1, "protocol": "tcp"}}}
	}
	if _, err := cni.AddNetworkList(ctx, list, conf); err != nil {
		return err
	}
	if err := cni.DelNetworkList(ctx, list, conf); err != nil {
		return err
	}
	_, err = w.Output(ctx, "ip", "netns", "delete", id)
	return err
}

// Reservations are the addresses that host-local holds now.
func (w *World) Reservations() ([]string, error) {
	entries, err := os.ReadDir(w.Path(ipamDir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	addresses := map[string]bool{}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), w.subnets.pods+".") {
			addresses[e.Name()] = true
		}
	}
	return slices.Sorted(maps.Keys(addresses)), err
}
