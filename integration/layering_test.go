// Package integration tests the repository as a whole.
package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/hibernate-runtime/hibernate/"

// leaves know one thing each. What joins them is above.
var leaves = []string{"runsc", "snapshot", "network", "wakeproxy"}

// A rule says what the packages of some directories must not import, directly or through others.
type rule struct {
	of     []string // top directories
	not    []string
	reason string
}

var rules = func() []rule {
	above := []string{"shim", "daemon", "cmd", "integration", "tools"}
	rs := []rule{
		{[]string{"api", "internal"}, append(above, leaves...), "api and internal are below everything: every other package may import them"},
		{[]string{"shim"}, []string{"daemon", "cmd", "integration", "tools"}, "the shim works without the daemon; they speak through api"},
		{[]string{"daemon"}, []string{"shim", "cmd", "integration", "tools"}, "the daemon can be replaced while shims run; they speak through api"},
		{[]string{"cmd"}, []string{"integration", "tools"}, "what ships must not need what tests it"},
	}
	for _, leaf := range leaves {
		others := slices.DeleteFunc(slices.Clone(leaves), func(l string) bool { return l == leaf })
		rs = append(rs, rule{[]string{leaf}, append(others, above...), "a leaf is understood and tested alone: what joins two of them belongs in shim or daemon"})
	}
	return rs
}()

type pkg struct {
	ImportPath, Name, Doc, Dir string
	Deps                       []string
}

// packages are those of this module, with all that they depend on in the builds that ship; tests may import more.
func packages(t *testing.T) []pkg {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-json=ImportPath,Name,Doc,Dir,Deps", module+"...").Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatal(err)
	}
	var all []pkg
	for in := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p pkg
		switch err := in.Decode(&p); {
		case err == io.EOF:
			return all
		case err != nil:
			t.Fatal("go list:", err)
		}
		all = append(all, p)
	}
}

// top is the directory at the top of the module that a package is in; empty when it is of another module.
func top(importPath string) string {
	rest, ours := strings.CutPrefix(importPath, module)
	if !ours {
		return ""
	}
	dir, _, _ := strings.Cut(rest, "/")
	return dir
}

// cmd → shim, daemon → runsc, snapshot, network, wakeproxy → api, internal.
func TestImportsPointDown(t *testing.T) {
	for _, p := range packages(t) {
		for _, r := range rules {
			if !slices.Contains(r.of, top(p.ImportPath)) {
				continue
			}
			for _, dep := range p.Deps {
				if slices.Contains(r.not, top(dep)) {
					t.Errorf("%s depends on %s\n\t%s.", strings.TrimPrefix(p.ImportPath, module), strings.TrimPrefix(dep, module), r.reason)
				}
			}
		}
	}
}

// The rules name every directory that has packages, so that a new one has to find its place.
func TestEveryDirectoryHasItsPlace(t *testing.T) {
	known := append([]string{"integration", "tools"}, leaves...)
	for _, r := range rules {
		known = append(known, r.of...)
	}
	for _, p := range packages(t) {
		if dir := top(p.ImportPath); !slices.Contains(known, dir) {
			t.Errorf("%s is in no rule of this test: say in layering_test.go what it may import", p.ImportPath)
		}
	}
}

func TestEveryPackageHasAComment(t *testing.T) {
	for _, p := range packages(t) {
		if p.Doc == "" && hasCode(t, p.Dir) && !strings.HasPrefix(p.ImportPath, module+"api/") {
			t.Errorf("%s has no package comment: say what the package is for, and explain its words", p.ImportPath)
		}
	}
}

// hasCode is false for a directory with tests alone.
func hasCode(t *testing.T, dir string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	return slices.ContainsFunc(files, func(f string) bool { return !strings.HasSuffix(f, "_test.go") })
}

// Every tool that a modfile pins has its sums beside it.
func TestModfilesHaveSums(t *testing.T) {
	mods, err := filepath.Glob("../tools/*.mod")
	if err != nil || len(mods) == 0 {
		t.Fatalf("no modfiles in tools: %v", err)
	}
	for _, m := range mods {
		if _, err := os.Stat(strings.TrimSuffix(m, ".mod") + ".sum"); err != nil {
			t.Error(err)
		}
	}
}
