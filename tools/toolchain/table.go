package main

import (
	"fmt"
	"path"
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
	{name: "versitygw", packages: []string{"github.com/versity/versitygw/cmd/versitygw"}, asked: true}, // 80 s to build
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
