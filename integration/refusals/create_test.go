package refusals

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

func TestCreate(t *testing.T) {
	n := newNode(t)
	for _, c := range []struct {
		name       string
		annotation [2]string
		config     [2]string
		words      []string
	}{
		{name: "unknown", annotation: [2]string{"nap", "1h"}, words: []string{"io.containerd.hibernate/nap", "unknown key"}},
		{name: "misspelt", annotation: [2]string{"idle-timout", "1h"}, words: []string{"idle-timout", "did you mean io.containerd.hibernate/idle-timeout?"}},
		{name: "duration", annotation: [2]string{"idle-timeout", "soon"}, words: []string{"io.containerd.hibernate/idle-timeout", `"soon"`, "such as 90s", "allowed"}},
		{name: "range", annotation: [2]string{"ports", "80,70000"}, words: []string{"io.containerd.hibernate/ports", "70000", "65535"}},
		{name: "name", annotation: [2]string{"mode", "sometimes"}, words: []string{"sometimes", "auto, observe, manual, off"}},
		{name: "beyond", annotation: [2]string{"wake-timeout", "10m"}, words: []string{"wake-timeout", "beyond the node's 30s", "only shorter"}},
		{name: "node", annotation: [2]string{"runsc", "/bin/true"}, words: []string{"io.containerd.hibernate/runsc", "may not change"}},
		{name: "file", config: [2]string{"idle-time", `"1h"`}, words: []string{"file.toml", "idle-time", "did you mean idle-timeout?"}},
		{name: "type", config: [2]string{"idle-timeout", "[]"}, words: []string{"type.toml", "idle-timeout"}},
		{name: "flag", config: [2]string{"runsc-flags", `["--debug", "--overlay2=none"]`}, words: []string{"runsc-flags", "--overlay2 is refused", "checkpoint"}},
		{name: "unknown-flag", config: [2]string{"runsc-flags", `["--oci-secomp"]`}, words: []string{"runsc-flags", "did you mean --oci-seccomp?"}},
		{name: "no-runsc", config: [2]string{"runsc", `"/nonexistent/runsc"`}, words: []string{"/nonexistent/runsc", "install it", "key runsc"}},
		{name: "no-runsc-in-path", config: [2]string{"runsc", `"runsc-of-nobody"`}, words: []string{"runsc-of-nobody", "PATH", "install it"}},
		{name: "no-helper", config: [2]string{"helper", `"/nonexistent/helper"`}, words: []string{"/nonexistent/helper", "install it", "key helper"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := n.on(t)
			container := harness.Container{ID: c.name, Image: "testserver", Detach: true}
			config := ""
			if c.annotation[0] != "" {
				container.Annotations = map[string]string{c.annotation[0]: c.annotation[1]}
			}
			if c.config[0] != "" {
				config = n.configured(c.config[0], c.config[1])
			}
			n.refused(container, config, c.words...)
		})
	}
	t.Run("unstamped", func(t *testing.T) {
		n := n.on(t)
		n.refused(harness.Container{ID: "a", Image: "testserver", Detach: true},
			n.configured("runsc", fmt.Sprintf("%q", n.otherRunsc("VERSION_MISSING"))), "built without a version", "make tools")
	})
	t.Run("no-runsc-at-all", func(t *testing.T) {
		n := n.on(t)
		path := filepath.Join(n.Dir, "broken")
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho 'something else 1.0'\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		n.refused(harness.Container{ID: "a", Image: "testserver", Detach: true},
			n.configured("runsc", fmt.Sprintf("%q", path)), path, "something else 1.0")
	})
}

// otherRunsc is the world's runsc under another version. Called again, it takes the place of the earlier one.
func (n *node) otherRunsc(version string) string {
	n.t.Helper()
	real := ""
	data, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		n.t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if value, ok := strings.CutPrefix(line, "runsc = "); ok {
			real = strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	path := filepath.Join(n.Dir, "runsc-of-"+strings.ReplaceAll(n.t.Name(), "/", "-"))
	script := fmt.Sprintf("#!/bin/sh\nfor a; do\n  [ \"$a\" = --version ] && { echo runsc version %s; exit; }\ndone\nexec %s \"$@\"\n", version, real)
	fresh := path + ".new"
	if err := os.WriteFile(fresh, []byte(script), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(fresh, path); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// A snapshot of another runsc is never restored; what then follows is the policy's, and told. A sandbox whose runsc was
// replaced is not put to sleep.
func TestReplacedRunsc(t *testing.T) {
	n := newNode(t)
	for _, policy := range []string{"cold", "block"} {
		t.Run(policy, func(t *testing.T) {
			n := n.on(t)
			if err := n.Import(n.context(), "testserver"); err != nil {
				t.Fatal(err)
			}
			config := n.configured("runsc", fmt.Sprintf("%q", n.otherRunsc("one")))
			c := harness.Container{ID: policy, Image: "testserver", Detach: true, Annotations: map[string]string{"on-restore-failure": policy}}
			args := n.RunArgs(c)
			for i, a := range args {
				if a == n.ConfigFile() {
					args[i] = config
				}
			}
			if _, err := n.Ctr(n.context(), args...); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := n.Remove(n.context(), c.ID); err != nil {
					t.Error(err)
				}
			})
			n.otherRunsc("two")
			if r := n.ctl("hibernate", c.ID); r.code != 4 || !strings.Contains(r.stderr, "[runsc-replaced]") {
				t.Errorf("hibernate with another runsc: status %d: %s", r.code, r.stderr)
			}
			n.otherRunsc("one")
			if r := n.ctl("hibernate", c.ID); r.code != 0 {
				t.Fatal(r.stderr)
			}
			n.otherRunsc("three")
			n.wakesOther(c.ID, policy)
		})
	}
}

func (n *node) wakesOther(id, policy string) {
	n.t.Helper()
	r := n.ctl("wake", id)
	if policy == "block" {
		if r.code != 4 || !strings.Contains(r.stderr, "runsc one") || !strings.Contains(r.stderr, "three") {
			n.t.Errorf("wake: status %d: %s%s", r.code, r.stdout, r.stderr)
		}
		n.otherRunsc("one")
		if r := n.ctl("wake", id); r.code != 0 || !strings.Contains(r.stdout, "restored") {
			n.t.Errorf("wake with the runsc that made it: status %d: %s%s", r.code, r.stdout, r.stderr)
		}
		return
	}
	if r.code != 0 || !strings.Contains(r.stdout, "cold-started") || !strings.Contains(r.stdout, "runsc one, this is three") {
		n.t.Errorf("wake: status %d: %s%s", r.code, r.stdout, r.stderr)
	}
	if kept, err := filepath.Glob(filepath.Join(n.DataDir(), "*", "*", "quarantine", "1-*.json")); err != nil || len(kept) != 1 {
		n.t.Errorf("the snapshot that was not used is kept in %v, %v", kept, err)
	}
	began := time.Now()
	for {
		if out, err := n.Exec(n.context(), id, "echo", "runs"); err == nil && out == "runs\n" {
			return
		} else if time.Since(began) > limit {
			n.t.Fatalf("it does not run: %v", err)
		}
	}
}
