package sandbox

import (
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// Before there is a holder, no hook has run that another would have to undo.
func TestNothingEndsBeforeTheHolder(t *testing.T) {
	w := bare()
	w.hooks = &specs.Hooks{Poststop: []specs.Hook{{Path: "/bin/true"}}}
	if e := w.ending(); e == nil || e.State.Pid != w.holder.Pid || len(e.Hooks) != 1 {
		t.Errorf("with a holder: %+v", e)
	}
	w.holder = nil
	if e := w.ending(); e != nil {
		t.Errorf("without: %+v", e)
	}
}
