package main

import (
	"flag"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden list of linked packages anew")

// golden lists every package of others that the shim links, Go's own included but for internal ones.
const golden = "testdata/links.txt"

// The shim's memory is paid once for each container, and half of it is its program. What stands here costs megabytes,
// and has no work in a shim; it is linked by an import that looked harmless.
var forbidden = map[string]string{
	"google.golang.org/grpc":                     "a shim speaks ttrpc: build with the tag no_grpc",
	"github.com/containerd/containerd/v2/client": "a shim is called by containerd, it doesn't call",
	"github.com/prometheus/client_golang":        "metrics are the daemon's",
	"github.com/spf13/cobra":                     "a shim has no commands for people",
	"github.com/minio/minio-go":                  "the store is the daemon's, and so are its credentials",
}

func TestLinks(t *testing.T) {
	for _, pkg := range linked(t) {
		for prefix, why := range forbidden {
			// The codes and status of gRPC are small packages that ttrpc shares.
			if pkg == prefix || (strings.HasPrefix(pkg, prefix+"/") && prefix != "google.golang.org/grpc") {
				t.Errorf("the shim links %s: %s", pkg, why)
			}
		}
	}
}

// TestGoldenLinks makes a new dependency a decision: a line in the list, seen in a review.
func TestGoldenLinks(t *testing.T) {
	now := slices.DeleteFunc(linked(t), func(pkg string) bool {
		return strings.HasPrefix(pkg, "github.com/hibernate-runtime/") || strings.Contains("/"+pkg+"/", "/internal/") ||
			strings.HasPrefix(pkg, "vendor/")
	})
	if *update {
		if err := os.WriteFile(golden, []byte(strings.Join(now, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Fields(string(text))
	for _, pkg := range now {
		if !slices.Contains(want, pkg) {
			t.Errorf("the shim links %s, which each container pays for: do without, or run this test with -update and say why", pkg)
		}
	}
	for _, pkg := range want {
		if !slices.Contains(now, pkg) {
			t.Errorf("the shim doesn't link %s any more: run this test with -update", pkg)
		}
	}
}

// linked are the packages, sorted.
func linked(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-tags", "no_grpc", ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64") // as it is built
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Fields(string(out))
	slices.Sort(lines)
	return lines
}
