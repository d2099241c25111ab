package main

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// A tool is one modfile and the programs that are built with it.
type tool struct {
	name     string   // tools/<name>.mod
	subdir   string   // below .tools/; empty is .tools/ itself
	packages []string // import paths; a program is named by the last element
	tests    bool     // the packages' tests are what is wanted: <last element>.test
	asked    bool     // built only when it is named
	// stamp is the variable that gets the version of module, in the form go-<time>-<commit>.
	stamp, module string

	// own says that tools/<name> is a module of ours, whose program is these tools: it is linked by each of the names.
	own     bool
	names   []string
	ldflags string // further ones
}

var table = []tool{
	{
		name:     "runsc",
		packages: []string{"gvisor.dev/gvisor/runsc"},
		// A restore compares these strings; without a stamp every build says VERSION_MISSING and the check is empty.
		stamp:  "gvisor.dev/gvisor/runsc/version.version",
		module: "gvisor.dev/gvisor",
	},
	{
		name: "containerd",
		packages: []string{
			"github.com/containerd/containerd/v2/cmd/containerd",
			"github.com/containerd/containerd/v2/cmd/ctr",
		},
	},
	{
		name:   "cni",
		subdir: "cni",
		packages: []string{
			"github.com/containernetworking/plugins/plugins/main/bridge",
			"github.com/containernetworking/plugins/plugins/main/loopback",
			"github.com/containernetworking/plugins/plugins/main/ptp",
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
			"github.com/containernetworking/plugins/plugins/meta/portmap",
			"github.com/containernetworking/plugins/plugins/meta/firewall",
		},
	},
	{name: "crictl", packages: []string{"sigs.k8s.io/cri-tools/cmd/crictl"}},
	{name: "critest", packages: []string{"sigs.k8s.io/cri-tools/cmd/critest"}, tests: true, asked: true},
	{
		name: "kube", own: true, asked: true, // four minutes to build, on two processors
		names: []string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-proxy", "kube-scheduler", "kubectl", "kubelet"},
		ldflags: "-X k8s.io/component-base/version.gitVersion=v1.36.3 -X k8s.io/component-base/version.gitMajor=1 " +
			"-X k8s.io/component-base/version.gitMinor=36",
	},
	{name: "versitygw", packages: []string{"github.com/versity/versitygw/cmd/versitygw"}, asked: true}, // 80 s to build
	{name: "seaweedfs", packages: []string{"github.com/seaweedfs/seaweedfs/weed"}, asked: true},        // four and a half minutes, 160 MB
	{name: "client", packages: []string{"github.com/containerd/containerd/v2/integration/client"}, tests: true, asked: true},
	{name: "staticcheck", packages: []string{"honnef.co/go/tools/cmd/staticcheck"}},
	{
		name: "protoc",
		packages: []string{
			"google.golang.org/protobuf/cmd/protoc-gen-go",
			"github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc",
		},
	},
}

// dir is where the tool's module is, with the file that names what it needs.
func (t tool) dir() string {
	if t.own {
		return filepath.Join("tools", t.name)
	}
	return "."
}

func (t tool) modfile() string {
	if t.own {
		return filepath.Join(t.dir(), "go.mod")
	}
	return filepath.Join("tools", t.name+".mod")
}

func (t tool) sumfile() string { return strings.TrimSuffix(t.modfile(), ".mod") + ".sum" }

// programs are the files in the tool's directory, by the names that they are linked as.
func (t tool) programs() map[string]string {
	m := map[string]string{}
	for _, name := range t.names {
		m[name] = t.name
	}
	for _, pkg := range t.packages {
		m[t.program(pkg)] = t.program(pkg)
	}
	return m
}

// program is the name of the file that a package is built into.
func (t tool) program(pkg string) string {
	if t.tests {
		return path.Base(pkg) + ".test"
	}
	return path.Base(pkg)
}

// choose returns the tools of these names in the table's order; when there are no names, all that needn't be named.
func choose(names []string) ([]tool, error) {
	var chosen, known []string
	var out []tool
	for _, t := range table {
		if len(names) == 0 && !t.asked {
			out = append(out, t)
		}
		known = append(known, t.name)
		if slices.Contains(names, t.name) {
			chosen, out = append(chosen, t.name), append(out, t)
		}
	}
	for _, n := range names {
		if !slices.Contains(chosen, n) {
			return nil, fmt.Errorf("no tool %q; there are %s", n, strings.Join(known, ", "))
		}
	}
	return out, nil
}
