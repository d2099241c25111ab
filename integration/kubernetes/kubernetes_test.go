package kubernetes

import (
	"context"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// A cluster of a test's, which ends with it.
func newCluster(t *testing.T, images ...string) *Cluster {
	t.Helper()
	w := harness.New(t, Options())
	c, err := Start(t.Context(), w, images...)
	if err != nil {
		t.Fatal("cluster: ", err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for name, p := range c.programs {
				t.Logf("--- the end of %s's log\n%s", name, p.LogTail(2000))
			}
		}
		if err := c.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error("end of the cluster: ", err)
		}
	})
	return c
}

// A node is Ready, and leaves nothing.
func TestNode(t *testing.T) {
	c := newCluster(t)
	if handler, err := c.Kubectl(t.Context(), "get", "runtimeclass", "hibernate", "--output", "jsonpath={.handler}"); err != nil || handler != "hibernate" {
		t.Errorf("the runtime class says %q, %v", handler, err)
	}
}
