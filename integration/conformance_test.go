package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// named is a test in docs/CONFORMANCE.md: package, test, and what a subtest is called.
var named = regexp.MustCompile("`([a-z0-9/]+) (Test[A-Za-z0-9]+)(?:/([^`]+))?`")

// Every test that the list of what a shim has to be names is there.
func TestNamedTestsExist(t *testing.T) {
	list, err := os.ReadFile(filepath.Join("..", "docs", "CONFORMANCE.md"))
	if err != nil {
		t.Fatal(err)
	}
	all := named.FindAllStringSubmatch(string(list), -1)
	if len(all) == 0 {
		t.Fatal("docs/CONFORMANCE.md names no tests")
	}
	sources := map[string]string{}
	for _, m := range all {
		dir, name, sub := m[1], m[2], m[3]
		if sources[dir] == "" {
			sources[dir] = testsOf(t, dir)
		}
		if !strings.Contains(sources[dir], "func "+name+"(") {
			t.Errorf("docs/CONFORMANCE.md: package %s has no %s", dir, name)
		}
		if sub != "" && !strings.Contains(sources[dir], `"`+sub) {
			t.Errorf("docs/CONFORMANCE.md: package %s calls no subtest or cell %q", dir, sub)
		}
	}
}

// testsOf is the source of a package's tests.
func testsOf(t *testing.T, dir string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", dir, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("docs/CONFORMANCE.md: package %s has no tests: %v", dir, err)
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
