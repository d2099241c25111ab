// Package client runs containerd's own client integration tests, as its module has them, against this runtime: `make
// test-client`. They start a containerd of their own, in a world of ours. table_test.go says which are run, and why the
// others are not.
package client

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	// queryLimit bounds what answers at once, suiteLimit the whole run.
	queryLimit = time.Minute
	suiteLimit = 8 * time.Minute
)

// program is the tests' binary.
func program(t *testing.T) string {
	t.Helper()
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	p := filepath.Join(root, ".tools", "client.test")
	if _, err := os.Stat(p); err != nil {
		t.Fatal("containerd's client tests are not built: run 'make test-client'")
	}
	return p
}

// Every test that containerd has is in the table, and none that it hasn't.
func TestTable(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), queryLimit)
	defer cancel()
	out, err := exec.CommandContext(ctx, program(t), "-test.short", "-test.list", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := slices.Concat(asked, noMatter)
	for name := range skipped {
		known = append(known, name)
	}
	slices.Sort(known)
	theirs := strings.Fields(string(out))
	slices.Sort(theirs)
	if !slices.Equal(known, theirs) {
		t.Errorf("the table has\n%v\ncontainerd has\n%v", known, theirs)
	}
}

func TestClient(t *testing.T) {
	program := program(t)
	t.Run("awake", func(t *testing.T) { run(t, program, false) })
	t.Run("asleep", func(t *testing.T) { run(t, program, true) })
}

// run runs what is asked in a world, and tells each test's outcome as one of ours. Where containers shall sleep, they do
// whenever they can.
func run(t *testing.T, program string, asleep bool) {
	w := newWorld(t, program)
	ctx, cancel := context.WithTimeout(t.Context(), suiteLimit)
	defer cancel()
	env := append(w.serve(ctx, t, program), "TEST_RUNTIME="+harness.Runtime, "TMPDIR="+w.dir("tmp"), "PATH="+w.path(t))
	cmd := w.Command(ctx, program, "-test.root", "-test.v", "-test.run", "^("+strings.Join(asked, "|")+")$")
	cmd.Env = append(cmd.Env, env...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if asleep {
		l := w.lull(ctx)
		defer l.end(t)
	}
	err := cmd.Run()
	passed := 0
	for _, name := range asked {
		t.Run(name, func(t *testing.T) {
			if outcome := outcomeOf(name, out.Bytes()); outcome != "PASS" {
				t.Errorf("%s:\n%s", outcome, said(name, out.Bytes()))
				return
			}
			passed++
		})
	}
	fmt.Printf("containerd's client tests, %s: %d run, %d passed, %d skipped, %d no matter of a runtime\n",
		filepath.Base(t.Name()), len(asked), passed, len(skipped), len(noMatter))
	if err != nil && !t.Failed() {
		t.Errorf("%v; it ends:\n%s", err, last(out.Bytes(), 3000))
	}
}

// outcomeOf is PASS, FAIL or SKIP, or says that the test did not come to an end.
func outcomeOf(name string, out []byte) string {
	m := regexp.MustCompile(`(?m)^--- (PASS|FAIL|SKIP): ` + name + ` \(`).FindSubmatch(out)
	if m == nil {
		return "did not end"
	}
	return string(m[1])
}

// said is what a test printed, without its client's log.
func said(name string, out []byte) string {
	var b strings.Builder
	current := ""
	for in := bufio.NewScanner(bytes.NewReader(out)); in.Scan(); {
		line := in.Text()
		if f := strings.Fields(line); len(f) == 3 && f[0] == "===" {
			current = f[2]
			continue
		}
		if top, _, _ := strings.Cut(current, "/"); top == name && !strings.Contains(line, "level=") {
			fmt.Fprintln(&b, line)
		}
	}
	return b.String()
}

func last(b []byte, n int) []byte { return b[max(0, len(b)-n):] }
