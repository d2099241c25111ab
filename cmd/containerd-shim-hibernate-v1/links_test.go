package main

import (
	"os/exec"
	"strings"
	"testing"
)

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
	out, err := exec.Command("go", "list", "-deps", "-tags", "no_grpc", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for pkg := range strings.FieldsSeq(string(out)) {
		for prefix, why := range forbidden {
			// The codes and status of gRPC are small packages that ttrpc shares.
			if pkg == prefix || (strings.HasPrefix(pkg, prefix+"/") && prefix != "google.golang.org/grpc") {
				t.Errorf("the shim links %s: %s", pkg, why)
			}
		}
	}
}
