package verbs

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// logger is a logging program: it copies both streams into files, and says by descriptor 5 that it is ready. Each start
// leaves a line.
const logger = `#!/bin/sh
echo "$CONTAINER_NAMESPACE/$CONTAINER_ID $*" >> %[1]s/starts
cat <&3 5>&- >> %[1]s/stdout & cat <&4 5>&- >> %[1]s/stderr &
printf x >&5; exec 5>&-
wait
echo end >> %[1]s/starts
`

// counting prints a numbered line on both outputs for ever.
const counting = "i=0; while :; do echo line-$i; echo line-$i >&2; i=$((i+1)); sleep 0.005; done"

// A log by a program has each line once, in order, through sleeps; the program is started once.
func testLogger(t *testing.T, n *node) {
	dir := t.TempDir()
	program := filepath.Join(dir, "logger")
	if err := os.WriteFile(program, fmt.Appendf(nil, logger, dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, scheme := range []string{"binary", "binary-v2"} {
		c := shell("logged", counting)
		c.Flags = []string{"--log-uri", scheme + "://" + program + "?key=a%20value"}
		for _, file := range []string{"starts", "stdout", "stderr"} {
			_ = os.Remove(filepath.Join(dir, file))
		}
		n.detached(c)
		n.count("logged", filepath.Join(dir, "stdout"))
		n.must("tasks", "delete", "--force", "logged")
		n.must("containers", "delete", "logged")
		n.numbered(filepath.Join(dir, "stdout"), 1)
		n.numbered(filepath.Join(dir, "stderr"), 1)
		want := n.Name + "/logged key a value\nend\n"
		if got := n.read(filepath.Join(dir, "starts")); got != want {
			t.Errorf("the logger was started: %q, want %q", got, want)
		}
	}
}

// A log in a file has both outputs, each line once, in order, through sleeps; also when it was emptied in between.
func testLogFile(t *testing.T, n *node) {
	log := filepath.Join(t.TempDir(), "made", "log")
	c := shell("filed", counting)
	c.Flags = []string{"--log-uri", "file://" + log}
	n.detached(c)
	n.count("filed", log)
	n.sleep("filed")
	n.numbered(log, 2)
	if err := os.Truncate(log, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Wake(n.context(), "filed"); err != nil {
		t.Fatal(err)
	}
	n.until("a line", func() (bool, string) { text := n.read(log); return strings.Contains(text, "\n"), text })
	if text := n.read(log); !strings.HasPrefix(text, "line-") {
		t.Errorf("after it was emptied the log begins %.40q", text)
	}
	n.must("tasks", "delete", "--force", "filed")
	n.must("containers", "delete", "filed")
}

// count lets a counting container sleep a few times, each time after it has printed something new.
func (n *node) count(id, log string) {
	n.t.Helper()
	size := 0
	for range 3 {
		n.until("lines", func() (bool, string) {
			text := n.read(log)
			return len(text) > size+100, text
		})
		n.sleep(id)
		size = len(n.read(log))
		if _, err := n.Wake(n.context(), id); err != nil {
			n.t.Fatal(err)
		}
	}
	n.until("lines", func() (bool, string) { text := n.read(log); return len(text) > size+100, text })
}

// numbered checks that a log has line-0, line-1 and so on, each as often as there are outputs in it. In the end one
// output may be ahead.
func (n *node) numbered(log string, outputs int) {
	n.t.Helper()
	lines := strings.Split(strings.TrimSuffix(n.read(log), "\n"), "\n")
	for i, line := range lines {
		if want := fmt.Sprintf("line-%d", i/outputs); line != want {
			n.t.Fatalf("line %d of %s is %.80q, want %q", i, filepath.Base(log), line, want)
		}
	}
}

func (n *node) read(path string) string {
	n.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		n.t.Fatal(err)
	}
	return string(data)
}

// A logger that can't be started fails the container, and leaves nothing.
func testBadLogger(t *testing.T, n *node) {
	n.imported("testserver")
	for _, uri := range []string{"binary:///no/such/logger", "binary-v2:///bin/true"} {
		c := shell("unlogged", "true")
		c.Detach, c.Flags = true, []string{"--log-uri", uri}
		r := n.ctr("", n.RunArgs(c)...)
		if r.code == 0 || !strings.Contains(r.stderr, "logger /") {
			t.Errorf("%s: status %d, %q", uri, r.code, r.stderr)
		}
		n.must("containers", "delete", "unlogged")
	}
}
