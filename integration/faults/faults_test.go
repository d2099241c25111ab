// Package faults walks the steps of hibernations and wakes, and has each fail, hang and die, as far as it can be made to.
//
// A *cell* is one step with one fault, and what must come of it: an outcome, a state, what is told, and whether the
// container's data is *kept* or *lost*. The cells are tables; a loss is only where the table says why it can't be avoided.
// A *lane* is a world of its own in which cells are walked one after the other, by a container that lives through them. After
// each cell everything must be as before: processes, mounts, namespaces, links, rules, sockets, files, descriptors.
//
// The *model* test does random things to a container and compares it with the lifecycle's tables after each.
package faults

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/integration/known"
)

const patience = known.Patience

// ran counts what was run, to be told at the end.
var ran struct{ cells, kept, lost, ended, sequences, operations atomic.Int64 }

func TestMain(m *testing.M) {
	code := m.Run()
	fmt.Printf("faults: %d cells ran: data kept in %d, lost where it must be in %d, container ended in %d\n",
		ran.cells.Load(), ran.kept.Load(), ran.lost.Load(), ran.ended.Load())
	fmt.Printf("faults: %d random sequences ran, %d operations; seed %d\n", ran.sequences.Load(), ran.operations.Load(), seed())
	os.Exit(code)
}

// wrapper builds runsc-fp once.
var wrapper = sync.OnceValues(func() (string, error) {
	root, err := harness.Root()
	if err != nil {
		return "", err
	}
	path := filepath.Join(root, ".tools", "runsc-fp")
	cmd := exec.Command("go", "build", "-o", path, "./integration/failpoint/runsc-fp")
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// lane is a world whose runsc fails on demand.
type lane struct {
	*testing.T            // of the cell that is walked
	home       *testing.T // of the lane
	w          *harness.World
	runsc      failpoint.Dir
}

// callTimeout is how long a call of runsc may hang here.
const callTimeout = 2 * time.Second

// newLane makes a world; its settings are these and those of tests.
func newLane(t *testing.T, daemon bool, settings map[string]string) *lane {
	t.Helper()
	program, err := wrapper()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "fp")
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	d, err := failpoint.Install(dir, program, filepath.Join(root, ".tools/runsc"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{
		"mode": `"manual"`, "runsc": fmt.Sprintf("%q", d.Binary()), "runsc-timeout": fmt.Sprintf("%q", callTimeout),
	}
	for k, v := range settings {
		all[k] = v
	}
	return &lane{T: t, home: t, w: harness.New(t, harness.Options{Daemon: daemon, Settings: all}), runsc: d}
}

func (l *lane) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	l.Cleanup(cancel)
	return ctx
}

func (l *lane) must(err error) {
	l.Helper()
	if err != nil {
		l.Fatal(err)
	}
}

func (l *lane) eventually(what string, ok func() bool) { l.Helper(); known.Eventually(l, what, ok) }
