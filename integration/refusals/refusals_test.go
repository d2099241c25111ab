// Package refusals gives the product what it must refuse, and looks that it says what, why and what to do, at the right
// place: at create, or as a reason for being awake. What can run all the same must run.
package refusals

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// limit bounds one step.
const limit = 30 * time.Second

type node struct {
	*harness.World
	t *testing.T
}

func newNode(t *testing.T) *node {
	t.Helper()
	return &node{harness.New(t, harness.Options{Daemon: true, Settings: map[string]string{"min-awake": `"0s"`}}), t}
}

func (n *node) on(t *testing.T) *node { return &node{n.World, t} }

func (n *node) context() context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), limit)
	n.t.Cleanup(cancel)
	return ctx
}

// result is how a program ended.
type result struct {
	stdout, stderr string
	code           int
}

func (n *node) do(cmd *exec.Cmd) result {
	n.t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		n.t.Fatal(err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ctl runs hibernatectl.
func (n *node) ctl(args ...string) result {
	n.t.Helper()
	return n.do(n.Command(n.context(), "hibernatectl", append([]string{"--config", n.ConfigFile()}, args...)...))
}

// refused runs a container that must not come to be, and checks that nothing of it stays and that the error says all of
// words. Its configuration is config's, or the world's where that is empty.
func (n *node) refused(c harness.Container, config string, words ...string) {
	n.t.Helper()
	if err := n.Import(n.context(), c.Image); err != nil {
		n.t.Fatal(err)
	}
	before, err := n.Census(n.context())
	if err != nil {
		n.t.Fatal(err)
	}
	args := n.RunArgs(c)
	if config != "" {
		args[slices.Index(args, "--runtime-config-path")+1] = config
	}
	r := n.do(n.Command(n.context(), "ctr", append([]string{"--address", n.Address(), "--namespace", n.Name}, args...)...))
	if r.code == 0 {
		n.t.Errorf("it runs")
	}
	n.t.Log(strings.TrimSpace(r.stderr[max(strings.LastIndex(r.stderr, "ctr: "), 0):]))
	for _, word := range words {
		if !strings.Contains(r.stderr, word) {
			n.t.Errorf("the error does not say %q: %s", word, r.stderr)
		}
	}
	if err := n.Remove(n.context(), c.ID); err != nil {
		n.t.Error(err)
	}
	if err := n.CheckLeaks(n.context(), before); err != nil {
		n.t.Error(err)
	}
}

// configured writes a configuration that differs from the world's in one key.
func (n *node) configured(key, value string) string {
	n.t.Helper()
	data, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		n.t.Fatal(err)
	}
	text := ""
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, key+" =") {
			text += line
		}
	}
	path := filepath.Join(n.Dir, n.t.Name()[strings.LastIndex(n.t.Name(), "/")+1:]+".toml")
	if err := os.WriteFile(path, fmt.Appendf([]byte(text), "%s = %s\n", key, value), 0o644); err != nil {
		n.t.Fatal(err)
	}
	return path
}

// runs starts a container and removes it with the test.
func (n *node) runs(c harness.Container) {
	n.t.Helper()
	c.Detach = true
	if _, err := n.Run(n.context(), c); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		if err := n.Remove(n.context(), c.ID); err != nil {
			n.t.Error(err)
		}
	})
}

// why are the codes that `hibernatectl why-awake` tells.
func (n *node) why(id string) []string {
	n.t.Helper()
	r := n.ctl("why-awake", "-o", "json", id)
	var answer struct {
		State   string
		Reasons []struct{ Code, Detail string }
	}
	if err := json.Unmarshal([]byte(r.stdout), &answer); err != nil {
		n.t.Fatalf("%v: %s%s", err, r.stdout, r.stderr)
	}
	var codes []string
	for _, reason := range answer.Reasons {
		if reason.Detail == "" {
			n.t.Errorf("reason %s has no sentence", reason.Code)
		}
		codes = append(codes, reason.Code)
	}
	return codes
}

// keptAwake checks that a container which runs says that code first, once the daemon has looked at it, and that a
// person's wish to put it to sleep is refused for the same reason, or done where sleeps.
func (n *node) keptAwake(id, code string, sleeps bool) {
	n.t.Helper()
	deadline := time.Now().Add(limit)
	for codes := n.why(id); len(codes) == 0 || codes[0] != code; codes = n.why(id) {
		if time.Now().After(deadline) {
			n.t.Fatalf("%s is awake because of %v, want %s", id, codes, code)
		}
		time.Sleep(50 * time.Millisecond)
	}
	r := n.ctl("hibernate", id)
	for sleeps && r.code == 4 && strings.Contains(r.stderr, "aborted") && time.Now().Before(deadline) {
		time.Sleep(20 * time.Millisecond)
		r = n.ctl("hibernate", id)
	}
	switch {
	case sleeps && r.code != 0:
		n.t.Errorf("hibernate: status %d: %s", r.code, r.stderr)
	case !sleeps && (r.code != 4 || !strings.Contains(r.stderr, "["+code+"]") || strings.Contains(r.stderr, "precondition")):
		n.t.Errorf("hibernate: status %d: %s", r.code, r.stderr)
	}
}
