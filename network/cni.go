package network

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/containernetworking/cni/libcni"
)

// cachedPortMappings looks for the pod in what CNI's library caches of its last
// ADD. The pod is known by its address; of several entries with that address,
// by its namespace's path too. The path alone doesn't tell: one by a process's
// number may be that of a pod before, whose entry nobody has removed.
func cachedPortMappings(dir, podNS string, a *Attachment) ([]PortMapping, *published) {
	list, err := libcni.NewCNIConfigWithCacheDir(nil, dir, nil).GetCachedAttachments("")
	if err != nil {
		return nil, nil
	}
	var byAddress *libcni.NetworkAttachment
	for _, c := range list {
		if c.IfName != a.Interface || !cachedResultHas(dir, c, a) {
			continue
		}
		if c.NetNS == podNS {
			byAddress = c
			break
		}
		if byAddress == nil {
			byAddress = c
		}
	}
	if byAddress == nil {
		return nil, nil
	}
	ports := portMappings(byAddress.CapabilityArgs)
	if _, plugin := portmapOf(byAddress.Config); plugin == nil || len(ports) == 0 {
		return ports, nil
	}
	return ports, &published{cacheFile(dir, byAddress), byAddress.Network, byAddress.ContainerID}
}

func cacheFile(dir string, c *libcni.NetworkAttachment) string {
	return filepath.Join(dir, "results", c.Network+"-"+c.ContainerID+"-"+c.IfName)
}

func portMappings(args map[string]any) []PortMapping {
	raw, err := json.Marshal(args["portMappings"])
	if err != nil {
		return nil
	}
	var list []PortMapping
	if json.Unmarshal(raw, &list) != nil {
		return nil
	}
	return list
}

// cachedResultHas reads the result's addresses, which libcni's listing leaves out.
func cachedResultHas(dir string, c *libcni.NetworkAttachment, a *Attachment) bool {
	raw, err := os.ReadFile(cacheFile(dir, c))
	if err != nil {
		return false
	}
	var entry struct {
		Result struct {
			IPs []struct {
				Address netip.Prefix `json:"address"`
			} `json:"ips"`
		} `json:"result"`
	}
	if json.Unmarshal(raw, &entry) != nil {
		return false
	}
	for _, ip := range entry.Result.IPs {
		if a.has(ip.Address.Addr()) {
			return true
		}
	}
	return false
}
