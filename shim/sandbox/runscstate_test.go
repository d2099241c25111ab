package sandbox

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hibernate-runtime/hibernate/runsc"
)

// A runsc that was killed while it wrote its state leaves one that the next runsc can read, with the status of the sandbox.
func TestDamagedStateIsMended(t *testing.T) {
	const good = `{"id":"web","status":"running","sandbox":{"pid":7}}`
	killed := errors.New("killed")
	for name, c := range map[string]struct {
		left   string
		status string
	}{
		"nothing written": {"", "paused"},
		"half written":    {good[:20], "paused"},
		"not begun":       {good, "running"},
	} {
		t.Run(name, func(t *testing.T) {
			w := bare()
			w.runsc = &runsc.Client{Root: t.TempDir()}
			path := filepath.Join(w.runsc.Root, stateOf(w.opts.ID))
			if err := os.WriteFile(path, []byte(good), 0o600); err != nil {
				t.Fatal(err)
			}
			err := w.guardState("paused", func() error { return errors.Join(os.WriteFile(path, []byte(c.left), 0o600), killed) })
			if !errors.Is(err, killed) {
				t.Errorf("the call ended with %v", err)
			}
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var state struct {
				ID, Status string
				Sandbox    struct{ Pid int }
			}
			if err := json.Unmarshal(data, &state); err != nil || state.Status != c.status || state.ID != "web" || state.Sandbox.Pid != 7 {
				t.Errorf("the state is %s: %v", data, err)
			}
		})
	}
}
