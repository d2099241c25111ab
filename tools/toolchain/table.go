package main

import (
	"fmt"
	"slices"
	"strings"
)

// A tool is one modfile and the programs that are built with it.
type tool struct {
	name     string   // tools/<name>.mod
	subdir   string   // below .tools/; empty is .tools/ itself
	packages []string // import paths; a program is named by the last element
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
			"github.com/containernetworking/plugins/plugins/ipam/host-local",
			"github.com/containernetworking/plugins/plugins/meta/portmap",
			"github.com/containernetworking/plugins/plugins/meta/firewall",
		},
	},
	{name: "staticcheck", packages: []string{"honnef.co/go/tools/cmd/staticcheck"}},
	{
		name: "protoc",
		packages: []string{
			"google.golang.org/protobuf/cmd/protoc-gen-go",
			"github.com/containerd/ttrpc/cmd/protoc-gen-go-ttrpc",
		},
	},
}

// choose returns the tools of these names in the table's order, or all when there are no names.
func choose(names []string) ([]tool, error) {
	if len(names) == 0 {
		return table, nil
	}
	var chosen, known []string
	var out []tool
	for _, t := range table {
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
