package runsc

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A hook's status and its last words are told, and nothing that it has started outlives it, however it ends.
func TestHook(t *testing.T) {
	b := newBox(t, "sleep")
	b.run()
	helper, err := os.Open(built(t, "../cmd/hibernate-helper"))
	b.must(err)
	defer helper.Close()
	process := specs.Process{Cwd: "/", Env: []string{"PATH=/nowhere:/"}}
	alone := func() {
		t.Helper()
		ps, err := b.Processes(b.ctx, b.id)
		b.must(err)
		if len(ps) != 1 {
			t.Errorf("there are %v", ps)
		}
	}
	run := func(ctx context.Context, args ...string) (int, string, error) {
		process.Args = args
		begin := time.Now()
		status, said, err := b.Hook(ctx, b.id, helper, process)
		t.Logf("%v: %v", args, time.Since(begin))
		return status, said, err
	}

	status, said, err := run(b.ctx, "init", "echo", "well")
	if status != 0 || said != "well\n" || err != nil {
		t.Errorf("%d, %q, %v", status, said, err)
	}
	status, said, err = run(b.ctx, "/none")
	if status != 127 || !strings.Contains(said, "/none: no such file") || err != nil {
		t.Errorf("%d, %q, %v", status, said, err)
	}
	status, said, err = run(b.ctx, "/init", "leave", "5")
	if status != 5 || len(said) != maxSaid || !strings.HasSuffix(said, "\nleaving\n") || err != nil {
		t.Errorf("%d, %d bytes: %q, %v", status, len(said), said, err)
	}
	alone()

	over := errors.New("it took too long")
	ctx, cancel := context.WithCancelCause(b.ctx)
	go func() {
		defer cancel(over)
		for b.ctx.Err() == nil { // until all is started
			if ps, err := b.Processes(b.ctx, b.id); err == nil && len(ps) == 1+2+4 {
				return
			}
		}
	}()
	if _, said, err = run(ctx, "/init", "leave", "not"); !errors.Is(err, over) || !strings.HasSuffix(said, "\nleaving\n") {
		t.Errorf("%q, %v", said, err)
	}
	alone()
}
