package refusals

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// shelf is a node with a runsc of its own, and a directory of others.
type shelf struct {
	*node
	runsc, dir, config string
}

func newShelf(n *node, settings ...string) *shelf {
	n.t.Helper()
	home := filepath.Join(n.Dir, strings.ReplaceAll(n.t.Name(), "/", "-"))
	s := &shelf{node: n, runsc: filepath.Join(home, "runsc"), dir: filepath.Join(home, "kept"), config: filepath.Join(home, "config.toml")}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		n.t.Fatal(err)
	}
	data, err := os.ReadFile(n.ConfigFile())
	if err != nil {
		n.t.Fatal(err)
	}
	text := ""
	for line := range strings.Lines(string(data)) {
		if !strings.HasPrefix(line, "runsc =") {
			text += line
		}
	}
	text += fmt.Sprintf("runsc = %q\nrunsc-dir = %q\n%s\n", s.runsc, s.dir, strings.Join(settings, "\n"))
	if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return s
}

// install makes the node's runsc be another one, and keeps the former one beside it. Its digest is returned.
func (s *shelf) install(version string) string {
	s.t.Helper()
	script := fmt.Sprintf("#!/bin/sh\nfor a; do\n  [ \"$a\" = --version ] && { echo runsc version %s; exit; }\ndone\nexec %s \"$@\"\n", version, s.Program("runsc"))
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(script)))
	for _, path := range []string{filepath.Join(s.dir, digest, "runsc"), s.runsc} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			s.t.Fatal(err)
		}
		if err := os.WriteFile(path+".new", []byte(script), 0o700); err != nil {
			s.t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			s.t.Fatal(err)
		}
	}
	return digest
}

func (s *shelf) run(id string, annotations map[string]string) {
	s.t.Helper()
	if err := s.Import(s.context(), "testserver"); err != nil {
		s.t.Fatal(err)
	}
	args := s.RunArgs(harness.Container{ID: id, Image: "testserver", Detach: true, Annotations: annotations})
	args[slices.Index(args, "--runtime-config-path")+1] = s.config
	if _, err := s.Ctr(s.context(), args...); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := s.Remove(s.context(), id); err != nil {
			s.t.Error(err)
		}
	})
}

// is looks of which runsc a workload's sandbox is, and that it runs.
func (s *shelf) is(id, version, digest string) {
	s.t.Helper()
	now, err := s.Status(s.context(), id)
	if err != nil {
		s.t.Fatal(err)
	}
	if now.GetRunscVersion() != version || now.GetRunscSha256() != digest {
		s.t.Errorf("%s is of runsc %s (%s), want %s (%s)", id, now.GetRunscVersion(), now.GetRunscSha256(), version, digest)
	}
	if out, err := s.Exec(s.context(), id, "echo", "runs"); err != nil || out != "runs\n" {
		s.t.Errorf("%s: %q, %v", id, out, err)
	}
}

func (s *shelf) sleeps(id string) {
	s.t.Helper()
	if r := s.ctl("hibernate", id); r.code != 0 {
		s.t.Fatal(r.stderr)
	}
}

func (s *shelf) wakes(id string, words ...string) {
	s.t.Helper()
	r := s.ctl("wake", id)
	if r.code != 0 {
		s.t.Fatal(r.stderr)
	}
	for _, w := range words {
		if !strings.Contains(r.stdout, w) {
			s.t.Errorf("woken without %q: %s", w, r.stdout)
		}
	}
}

// An upgrade of runsc strands nobody: what one has put to sleep that one wakes, while new workloads start with the next.
func TestRunscsSideBySide(t *testing.T) {
	s := newShelf(newNode(t))
	one := s.install("one")
	s.run("a", nil)
	s.is("a", "one", one)
	s.sleeps("a")
	two := s.install("two")
	s.wakes("a", "restored")
	s.is("a", "one", one)
	s.run("b", nil)
	s.is("b", "two", two)
	s.sleeps("a") // by the one that runs it
	s.wakes("a", "restored")
	s.is("a", "one", one)

	record, err := s.Record("a")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(record.Bundle, "hibernate", "state.json"))
	var state struct{ Runsc string }
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil || state.Runsc != filepath.Join(s.dir, one, "runsc") {
		t.Errorf("whoever takes down what a shim leaves would use %s, %v", state.Runsc, err)
	}
	needed := s.ctl("node", "-o", "json")
	var tells struct {
		Runscs []struct {
			Version, Path string
			NeededBy      []string `json:"needed_by"`
		}
	}
	if err := json.Unmarshal([]byte(needed.stdout), &tells); err != nil {
		t.Fatalf("%v: %s%s", err, needed.stdout, needed.stderr)
	}
	for version, who := range map[string]string{"one": "/a", "two": "/b"} {
		i := slices.IndexFunc(tells.Runscs, func(r struct {
			Version, Path string
			NeededBy      []string `json:"needed_by"`
		}) bool {
			return r.Version == version
		})
		if i < 0 || !slices.Contains(tells.Runscs[i].NeededBy, s.Name+who) || tells.Runscs[i].Path != "" { // the daemon's configuration is another
			t.Errorf("runsc %s is needed as %s", version, needed.stdout)
		}
	}

	s.sleeps("a")
	if err := os.RemoveAll(filepath.Join(s.dir, one)); err != nil {
		t.Fatal(err)
	}
	s.wakes("a", "cold-started", "was made by runsc one, this is two", one, filepath.Join(s.dir, one, "runsc"), "checkpointgofer beside it")
	s.is("a", "two", two)
}

// A runsc that was replaced under a sandbox that runs still puts it to sleep, where it is kept.
func TestRunscReplacedWhileAwake(t *testing.T) {
	s := newShelf(newNode(t))
	one := s.install("one")
	if err := os.RemoveAll(filepath.Join(s.dir, one)); err != nil {
		t.Fatal(err)
	}
	s.run("a", map[string]string{"on-restore-failure": "block"})
	s.install("two")
	if r := s.ctl("hibernate", "a"); r.code != 4 || !strings.Contains(r.stderr, "[runsc-replaced]") {
		t.Errorf("status %d: %s", r.code, r.stderr)
	}
	s.install("one")
	s.install("two") // and the first is kept
	s.sleeps("a")
	s.wakes("a", "restored")
	s.is("a", "one", one)
}

// What a pool's nodes have in common is all that a workload sees of the CPU, asleep or woken; and a node that lacks some of it says so.
func TestCPUFeatures(t *testing.T) {
	n := newNode(t)
	out, err := n.Output(n.context(), "runsc", "cpu-features")
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Split(strings.TrimSpace(out), ",")
	const masked = "rdseed"
	if !slices.Contains(all, masked) || !slices.Contains(all, "sse4_2") {
		t.Fatalf("not a CPU for this test: %s", out)
	}
	pool := slices.DeleteFunc(slices.Clone(all), func(f string) bool { return f == masked })
	quoted := `cpu-features = ["` + strings.Join(pool, `", "`) + `"]`
	t.Run("masked", func(t *testing.T) {
		s := newShelf(n.on(t), quoted)
		s.install("one")
		flags := func() []string {
			out, err := s.Exec(s.context(), "masked", "cat", "/proc/cpuinfo")
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(out, "flags")
			line, _, _ := strings.Cut(rest, "\n")
			return strings.Fields(line)
		}
		s.run("masked", nil)
		if got := flags(); slices.Contains(got, masked) || !slices.Contains(got, "sse4_2") {
			t.Errorf("it sees %v", got)
		}
		s.sleeps("masked")
		manifests, err := filepath.Glob(filepath.Join(s.DataDir(), "*", "*", "1", "manifest.json"))
		if err != nil || len(manifests) != 1 {
			t.Fatalf("%v, %v", manifests, err)
		}
		data, err := os.ReadFile(manifests[0])
		if err != nil || strings.Contains(string(data), `"`+masked+`"`) || !strings.Contains(string(data), `"sse4_2"`) {
			t.Errorf("what it needs is not what it was given: %v", err)
		}
		s.wakes("masked", "restored")
		if got := flags(); slices.Contains(got, masked) || !slices.Contains(got, "sse4_2") {
			t.Errorf("woken it sees %v", got)
		}
	})
	t.Run("lacking", func(t *testing.T) {
		n := n.on(t)
		n.refused(harness.Container{ID: "lacking", Image: "testserver", Detach: true}, n.configured("cpu-features", `["sse4_2", "nosuchfeature"]`),
			"cpu-features has nosuchfeature", "this node's CPU lacks", "out of the pool")
	})
}
