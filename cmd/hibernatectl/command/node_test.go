package command

import (
	"bytes"
	"testing"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
)

// A node's facts, its runscs, and one that something needs and that isn't there.
func TestNodeText(t *testing.T) {
	var out bytes.Buffer
	err := printNode(&out, &daemonv1.NodeResponse{
		Name: "node-a", RunscDir: "/usr/local/bin/hibernate-bin/runsc",
		Facts: map[string]string{"arch": "amd64", "memory": "8589934592", "cpu-features": "sse4_2 avx2", "runsc": "left=out"},
		Runscs: []*daemonv1.Runsc{
			{Version: "release-20260905.0", Sha256: "5f16c4a1d2e3f4a5b6c7d8e9", Path: "/usr/local/bin/runsc", Configured: true},
			{Version: "release-20260804.0", Sha256: "0a1b2c3d4e5f60718293a4b5", Path: "/usr/local/bin/hibernate-bin/runsc/0a1b2c3d4e5f60718293a4b5/runsc", NeededBy: []string{"default/a", "default/b", "default/c", "default/identity=db"}},
			{Version: "release-20260701.0", Sha256: "ffeeddccbbaa99887766554433221100", NeededBy: []string{"k8s.io/old"}},
		},
		Error: "/opt/runsc: permission denied",
	})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "node.txt", out.Bytes())
}
