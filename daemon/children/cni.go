package children

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// ctrNetwork is the extension by which ctr knows a container that it has given a network by CNI, to take it away again.
const ctrNetwork = "ctr.cni-containerd.metadata"

// Where ctr looks for the network.
const (
	cniConfigs   = "/etc/cni/net.d"
	cniPlugins   = "/opt/cni/bin"
	cniInterface = "eth0"
)

// attach gives a task the network that ctr run --cni would, under the name by which ctr takes it away. undo does that.
func attach(ctx context.Context, name string, pid uint32) (undo func(context.Context) error, err error) {
	list, cni, err := defaultCNI()
	if err != nil {
		return nil, err
	}
	conf := &libcni.RuntimeConf{ContainerID: name, NetNS: fmt.Sprintf("/proc/%d/ns/net", pid), IfName: cniInterface}
	undo = func(ctx context.Context) error { return cni.DelNetworkList(ctx, list, conf) }
	if _, err := cni.AddNetworkList(ctx, list, conf); err != nil {
		return nil, errors.Join(fmt.Errorf("CNI's network %s: %w", list.Name, err), undo(context.WithoutCancel(ctx)))
	}
	return undo, nil
}

// detach takes away what attach has given.
func detach(ctx context.Context, name string) error {
	list, cni, err := defaultCNI()
	if err != nil {
		return err
	}
	return cni.DelNetworkList(ctx, list, &libcni.RuntimeConf{ContainerID: name, IfName: cniInterface})
}

func defaultCNI() (*libcni.NetworkConfigList, *libcni.CNIConfig, error) {
	list, err := defaultNetwork(cniConfigs)
	if err != nil {
		return nil, nil, fmt.Errorf("CNI: %w", err)
	}
	return list, libcni.NewCNIConfig(append(filepath.SplitList(os.Getenv("CNI_PATH")), cniPlugins), nil), nil
}

// defaultNetwork is the first list of plugins in a directory, in the order of the files' names.
func defaultNetwork(dir string) (*libcni.NetworkConfigList, error) {
	files, err := libcni.ConfFiles(dir, []string{".conflist"})
	if err != nil {
		return nil, err
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no network is configured in %s (*.conflist)", dir)
	}
	return libcni.ConfListFromFile(slices.Min(files))
}
