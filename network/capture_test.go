package network_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/network"
)

func TestCapture(t *testing.T) {
	w := newWorld(t)
	a, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	eth0 := get(t, handle(t, w.pod), "eth0").Attrs()
	want := &network.Attachment{
		Interface: "eth0", MAC: eth0.HardwareAddr.String(), MTU: eth0.MTU,
		Addresses: prefixes("10.99.0.2/24"),
		Routes: []network.Route{
			{Destination: prefixes("0.0.0.0/0")[0], Gateway: routerAddr},
			{Destination: prefixes("10.99.0.0/24")[0], Source: podAddr},
		},
	}
	if !reflect.DeepEqual(a, want) {
		t.Fatalf("captured\n%+v, want\n%+v", a, want)
	}
	var back network.Attachment
	raw, err := json.Marshal(a)
	must(t, err)
	must(t, json.Unmarshal(raw, &back))
	if !reflect.DeepEqual(&back, want) {
		t.Fatalf("through JSON\n%+v, want\n%+v", &back, want)
	}
	w.open(t)
	again, err := network.Capture(t.Context(), w.pod, network.WithCNICache(t.TempDir()))
	must(t, err)
	if !reflect.DeepEqual(again, want) {
		t.Fatalf("with the link there\n%+v, want\n%+v", again, want)
	}
}

// The default route decides which interface it is, not the order.
func TestCaptureTakesTheDefaultRoutesInterface(t *testing.T) {
	w := newWorld(t)
	pair(t, w.node, "vsecond", w.pod, "aaa0", nil)
	h := handle(t, w.pod)
	addAddr(t, h, "aaa0", addrOf("10.97.0.2"), 24)
	a, err := network.Capture(t.Context(), w.pod)
	must(t, err)
	if a.Interface != "eth0" {
		t.Fatalf("captured %s", a.Interface)
	}
	must(t, h.RouteReplace(&netlink.Route{LinkIndex: get(t, h, "aaa0").Attrs().Index, Gw: addrOf("10.97.0.1").AsSlice()}))
	if a, err = network.Capture(t.Context(), w.pod); err != nil || a.Interface != "aaa0" {
		t.Fatalf("captured %+v, %v", a, err)
	}
}

func TestCaptureWithoutANetwork(t *testing.T) {
	w := newWorld(t)
	h := handle(t, w.inner)
	must(t, h.LinkSetUp(get(t, h, "lo")))
	if _, err := network.Capture(t.Context(), w.inner); !errors.Is(err, network.ErrNoNetwork) {
		t.Fatalf("loopback only: %v", err)
	}
	if _, err := network.Capture(t.Context(), t.TempDir()); err == nil {
		t.Fatal("a directory was captured")
	}
}

func TestCaptureReadsPortMappingsFromCNI(t *testing.T) {
	w := newWorld(t)
	cache := t.TempDir()
	entry := func(name, netns, address string, port int) {
		raw, err := json.Marshal(map[string]any{
			"kind": "cniCacheV1", "containerId": name, "config": "e30=", "ifName": "eth0", "networkName": "net", "netns": netns,
			"capabilityArgs": map[string]any{"portMappings": []map[string]any{{"hostPort": port, "containerPort": 80, "protocol": "tcp", "hostIP": ""}}},
			"result":         map[string]any{"cniVersion": "1.0.0", "ips": []map[string]any{{"address": address}}},
		})
		must(t, err)
		must(t, os.MkdirAll(filepath.Join(cache, "results"), 0o700))
		must(t, os.WriteFile(filepath.Join(cache, "results", "net-"+name+"-eth0"), raw, 0o600))
	}
	mapped := func() uint16 {
		a, err := network.Capture(t.Context(), w.pod, network.WithCNICache(cache))
		must(t, err)
		if len(a.PortMappings) != 1 {
			return 0
		}
		if m := a.PortMappings[0]; m.ContainerPort != 80 || m.Protocol != "tcp" {
			t.Fatalf("mapping %+v", m)
		}
		return a.PortMappings[0].HostPort
	}
	entry("other", "/proc/1/ns/net", "10.99.0.9/24", 1)
	if got := mapped(); got != 0 {
		t.Fatalf("somebody else's mapping: %d", got)
	}
	entry("before", w.pod, "10.99.0.9/24", 2)
	if got := mapped(); got != 0 {
		t.Fatalf("that of a pod which had the path before: %d", got)
	}
	entry("byaddress", "/proc/2/ns/net", "10.99.0.2/24", 8080)
	if got := mapped(); got != 8080 {
		t.Fatalf("by address: %d", got)
	}
	entry("bypath", w.pod, "10.99.0.2/24", 8081)
	if got := mapped(); got != 8081 {
		t.Fatalf("by path: %d", got)
	}
}

func TestCaptureTellsOfAMesh(t *testing.T) {
	for name, meddle := range map[string]func(t *testing.T, w *world){
		"redirect":     func(t *testing.T, w *world) { natRule(t, w.pod) },
		"mark":         func(t *testing.T, w *world) { markRule(t, w.pod) },
		"routing rule": func(t *testing.T, w *world) { meshRule(t, w.pod) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			meddle(t, w)
			a, err := network.Capture(t.Context(), w.pod)
			var mesh *network.ErrMesh
			if !errors.As(err, &mesh) || len(mesh.Found) != 1 {
				t.Fatalf("capture: %v", err)
			}
			if a == nil || !strings.Contains(err.Error(), mesh.Found[0]) {
				t.Fatalf("attachment %v, error %v", a, err)
			}
			t.Log(err)
		})
	}
}

func foreignChain(t *testing.T, ns string, kind nftables.ChainType, exprs ...expr.Any) {
	t.Helper()
	c := nft(t, ns)
	table := c.AddTable(&nftables.Table{Name: "mesh", Family: nftables.TableFamilyIPv4})
	chain := c.AddChain(&nftables.Chain{
		Table: table, Name: "in", Type: kind, Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityNATDest,
	})
	c.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: exprs})
	must(t, c.Flush())
}

func natRule(t *testing.T, ns string) {
	foreignChain(t, ns, nftables.ChainTypeNAT,
		&expr.Immediate{Register: 1, Data: []byte{0x3a, 0x99}}, &expr.Redir{RegisterProtoMin: 1})
}

func markRule(t *testing.T, ns string) {
	foreignChain(t, ns, nftables.ChainTypeFilter,
		&expr.Immediate{Register: 1, Data: []byte{0x39, 5, 0, 0}}, &expr.Meta{Key: expr.MetaKeyMARK, SourceRegister: true, Register: 1})
}

func meshRule(t *testing.T, ns string) {
	rule := netlink.NewRule()
	rule.Family, rule.Priority, rule.Mark, rule.Table = unix.AF_INET, 32764, 0x111, 100
	must(t, handle(t, ns).RuleAdd(rule))
}

// Filters without marks or nat are nobody's mesh.
func TestCaptureBearsAFirewall(t *testing.T) {
	w := newWorld(t)
	foreignChain(t, w.pod, nftables.ChainTypeFilter, &expr.Counter{})
	_, err := network.Capture(t.Context(), w.pod)
	must(t, err)
}
