package sandbox

import (
	"errors"
	"strings"
	"testing"
)

func TestWhatANodeRefuses(t *testing.T) {
	node := ability{
		architecture: "amd64", platform: "systrap", features: []string{"avx", "avx2", "sse"}, cacheLine: 64, pageSize: 4096, families: []string{"IPv4"},
		inside: []string{"10.0.0.2"},
	}
	for what, c := range map[string]struct {
		change func(needs *ability)
		words  []string // none: it is taken
	}{
		"the same":                  {func(*ability) {}, nil},
		"fewer features":            {func(a *ability) { a.features = []string{"sse"} }, nil},
		"nothing known":             {func(a *ability) { *a = ability{} }, nil},
		"another architecture":      {func(a *ability) { a.architecture = "arm64" }, []string{"architecture", "arm64", "amd64"}},
		"another platform":          {func(a *ability) { a.platform = "kvm" }, []string{"platform", "kvm", "systrap"}},
		"features that it lacks":    {func(a *ability) { a.features = []string{"sse", "avx512f", "amx"} }, []string{"the CPU", "avx512f amx"}},
		"another cache line":        {func(a *ability) { a.cacheLine = 128 }, []string{"cache line", "128 bytes", "64 bytes"}},
		"another page size":         {func(a *ability) { a.pageSize = 65536 }, []string{"page size", "65536 bytes", "4096 bytes"}},
		"a family that is lacked":   {func(a *ability) { a.families = []string{"IPv4", "IPv6"} }, []string{"network", "IPv4 and IPv6", "it is IPv4;"}},
		"an address that it hasn't": {func(a *ability) { a.inside = []string{"10.0.0.9"} }, []string{"its address", "10.0.0.9", "10.0.0.2", "start another"}},
		"no network before":         {func(a *ability) { a.families, a.inside = nil, nil }, nil},
	} {
		needs := node
		c.change(&needs)
		err := node.refuses(needs)
		var unable *ineligibleError
		if (c.words == nil) != (err == nil) || err != nil && !errors.As(err, &unable) {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, w := range append(c.words, "restore = never")[:len(c.words)+min(1, len(c.words))] {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %q is missing in: %v", what, w, err)
			}
		}
	}
	needs := node
	node.families, node.inside = nil, nil
	if err := node.refuses(needs); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no network: %v", err)
	}
}
