package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named is a test in one of the lists: package, test, and what a subtest is called.
var named = regexp.MustCompile("`([a-z0-9/]+) (Test[A-Za-z0-9]+)(?:/([^`]+))?`")

// Every test that the lists of what a shim and the network have to be, and of what sleep does to a program, name is there.
func TestNamedTestsExist(t *testing.T) {
	for _, name := range []string{"CONFORMANCE.md", "NETWORK.md", "SLEEP.md"} {
		t.Run(name, func(t *testing.T) { namedIn(t, filepath.Join("docs", name)) })
	}
}

func namedIn(t *testing.T, list string) {
	text, err := os.ReadFile(filepath.Join("..", list))
	if err != nil {
		t.Fatal(err)
	}
	all := named.FindAllStringSubmatch(string(text), -1)
	if len(all) == 0 {
		t.Fatal(list, "names no tests")
	}
	sources := map[string]string{}
	for _, m := range all {
		dir, name, sub := m[1], m[2], m[3]
		if sources[dir] == "" {
			sources[dir] = testsOf(t, dir)
		}
		if !strings.Contains(sources[dir], "func "+name+"(") {
			t.Errorf("%s: package %s has no %s", list, dir, name)
		}
		if sub != "" && !strings.Contains(sources[dir], `"`+sub) {
			t.Errorf("%s: package %s calls no subtest or cell %q", list, dir, sub)
		}
	}
}

// testsOf is the source of a package's tests.
func testsOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("package %s has no tests: %v", dir, err)
	}
	var all strings.Builder
	for _, f := range files {
		source, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(source)
	}
	return all.String()
}

// The ring of the network runs what its list names: a test that isn't named there would never be run.
func TestNetworksTestsAreNamed(t *testing.T) {
	list, err := os.ReadFile(filepath.Join("..", "docs", "NETWORK.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t `).FindAllStringSubmatch(testsOf(t, "integration/network"), -1) {
		if !strings.Contains(string(list), "`integration/network "+m[1]) {
			t.Errorf("docs/NETWORK.md doesn't name %s of integration/network", m[1])
		}
	}
}

// What is measured of programs is told.
func TestMeasuredSleepIsTold(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "docs", "SLEEP.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{"integration/aftersleep", "integration/ownhooks"} {
		for _, m := range regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(t `).FindAllStringSubmatch(testsOf(t, dir), -1) {
			if !strings.Contains(string(page), "`"+dir+" "+m[1]+"`") {
				t.Errorf("docs/SLEEP.md doesn't name %s of %s", m[1], dir)
			}
		}
	}
}
