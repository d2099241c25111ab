package eligible_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

func TestWhatANodeRefuses(t *testing.T) {
	node := eligible.Ability{
		Architecture: "amd64", Platform: "systrap", Features: []string{"avx", "avx2", "sse"}, CacheLine: 64, PageSize: 4096, Families: []string{"IPv4"},
		Inside: []string{"10.0.0.2"}, Runscs: []eligible.Runsc{{Version: "1", SHA256: "aa"}, {Version: "2", SHA256: "bb"}},
	}
	for what, c := range map[string]struct {
		change func(needs *eligible.Ability)
		words  []string // none: it is taken
	}{
		"the same":                  {func(*eligible.Ability) {}, nil},
		"fewer features":            {func(a *eligible.Ability) { a.Features = []string{"sse"} }, nil},
		"nothing known":             {func(a *eligible.Ability) { *a = eligible.Ability{} }, nil},
		"another architecture":      {func(a *eligible.Ability) { a.Architecture = "arm64" }, []string{"architecture", "arm64", "amd64"}},
		"another platform":          {func(a *eligible.Ability) { a.Platform = "kvm" }, []string{"platform", "kvm", "systrap"}},
		"features that it lacks":    {func(a *eligible.Ability) { a.Features = []string{"sse", "avx512f", "amx"} }, []string{"the CPU", "avx512f amx"}},
		"another cache line":        {func(a *eligible.Ability) { a.CacheLine = 128 }, []string{"cache line", "128 bytes", "64 bytes"}},
		"another page size":         {func(a *eligible.Ability) { a.PageSize = 65536 }, []string{"page size", "65536 bytes", "4096 bytes"}},
		"a family that is lacked":   {func(a *eligible.Ability) { a.Families = []string{"IPv4", "IPv6"} }, []string{"network", "IPv4 and IPv6", "it is IPv4;"}},
		"an address that it hasn't": {func(a *eligible.Ability) { a.Inside = []string{"10.0.0.9"} }, []string{"its address", "10.0.0.9", "10.0.0.2", "start another"}},
		"one of its runscs":         {func(a *eligible.Ability) { a.Runscs = a.Runscs[1:] }, nil},
		"a runsc without a digest":  {func(a *eligible.Ability) { a.Runscs = []eligible.Runsc{{Version: "2"}} }, nil},
		"another runsc":             {func(a *eligible.Ability) { a.Runscs = []eligible.Runsc{{Version: "3", SHA256: "cc"}} }, []string{"runsc", "3 (sha256 cc)", "2 (sha256 bb)"}},
		"another build of one":      {func(a *eligible.Ability) { a.Runscs = []eligible.Runsc{{Version: "2", SHA256: "cc"}} }, []string{"runsc", "2 (sha256 cc)"}},
		"no network before":         {func(a *eligible.Ability) { a.Families, a.Inside = nil, nil }, nil},
	} {
		needs := node
		c.change(&needs)
		err := node.Refuses(needs)
		var unable *eligible.Error
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
	node.Families, node.Inside = nil, nil
	if err := node.Refuses(needs); err == nil || !strings.Contains(err.Error(), "none") {
		t.Errorf("no network: %v", err)
	}
}
