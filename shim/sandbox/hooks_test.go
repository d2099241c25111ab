package sandbox

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/runsc"
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

// A shim of an earlier version that died after an upgrade has kept its hooks elsewhere; they run once all the same, and know
// their container.
func TestHooksOfAnEarlierShimRunOnce(t *testing.T) {
	bundle := t.TempDir()
	p := places{bundle}
	out := filepath.Join(bundle, "out")
	hooks, err := json.Marshal([]specs.Hook{{Path: "/bin/sh", Args: []string{"sh", "-c", "cat >> " + out}}})
	if err != nil {
		t.Fatal(err)
	}
	state, err := json.Marshal(map[string]any{"id": "c", "holder": process{Pid: 7}, "hooks": hooks})
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string]string{
		p.state():                            string(state),
		filepath.Join(bundle, "config.json"): `{"ociVersion":"1.2.0","process":{},"root":{},"annotations":{"engine/id":"x"}}`,
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s, err := readState(p.state())
		if err != nil {
			t.Fatal(err)
		}
		if err := s.runStopHooks(t.Context(), p, runsc.ExecRunner{}); err != nil {
			t.Fatal(err)
		}
	}
	read, err := os.ReadFile(out)
	if err != nil || strings.Count(string(read), "ociVersion") != 1 {
		t.Errorf("they ran with %q, %v", read, err)
	}
	for _, want := range []string{`"id":"c"`, `"status":"stopped"`, `"pid":7`, `"engine/id":"x"`, fmt.Sprintf(`"bundle":%q`, bundle)} {
		if !strings.Contains(string(read), want) {
			t.Errorf("they are not told %s: %s", want, read)
		}
	}
}
