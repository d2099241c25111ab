package command

import (
	"bytes"
	"errors"
	"testing"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
)

// Each step is told with its time, and at the end where the workload is.
func TestPrintMove(t *testing.T) {
	for want, m := range map[string]*daemonv1.MoveResponse{
		"hand-over     77 ms  snapshot 1, from node-a\n":                                        {Step: "hand-over", TookMs: 77, Detail: "snapshot 1, from node-a"},
		"default/db goes on on node-b, in container default/two\n":                              {Moved: &daemonv1.Moved{Node: "node-b", Container: "default/two"}},
		"default/db is on node-b, asleep: container default/two could not be woken\n":           {Moved: &daemonv1.Moved{Node: "node-b", Detail: "container default/two could not be woken"}},
		"default/db is on node-b, asleep, until a container of its identity is started there\n": {Moved: &daemonv1.Moved{Node: "node-b"}},
	} {
		var out bytes.Buffer
		if err := printMove(&out, "default/db", m); err != nil || out.String() != want {
			t.Errorf("%q, want %q: %v", out.String(), want, err)
		}
	}
}

// Without a node nothing is asked for.
func TestMoveNeedsANode(t *testing.T) {
	cmd := newMove(&options{runDir: t.TempDir()})
	cmd.SetArgs([]string{"db"})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var usage usageError
	if err := cmd.Execute(); !errors.As(err, &usage) {
		t.Errorf("%v", err)
	}
}
