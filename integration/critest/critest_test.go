package critest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

const (
	// queryLimit bounds what answers at once, suiteLimit a whole run, which critest itself ends a little earlier.
	queryLimit = time.Minute
	suiteLimit = 8 * time.Minute
	// least is how many specs are asked at least: fewer are a mistake in the tables.
	least = 83
)

func TestAwake(t *testing.T) {
	n := newNode(t)
	report(t, n.run("unix://"+n.Address(), skipped))
}

// Whoever calls, the pods sleep when the answer is there.
func TestHibernating(t *testing.T) {
	n := newNode(t)
	l := n.lull()
	defer l.end(t)
	report(t, n.run("unix://"+l.socket, skipped, awake))
}

// Each pattern of the table leaves something out that critest has.
func TestTable(t *testing.T) {
	n := newNode(t)
	specs := n.critest("unix://"+n.Address(), "--ginkgo.dry-run")
	for _, pattern := range patterns(skipped, awake) {
		if !slices.ContainsFunc(specs, func(s spec) bool { return strings.Contains(s.name(), pattern) }) {
			t.Errorf("no spec of critest has %q in its name", pattern)
		}
	}
}

// A spec is what critest tells of one of its own, in its report.
type spec struct {
	ContainerHierarchyTexts []string
	LeafNodeType            string
	LeafNodeText            string
	State                   string
	RunTime                 time.Duration
	Failure                 struct {
		Message         string
		FailureNodeText string
		Location        struct {
			FileName   string
			LineNumber int
		}
	}
	CapturedGinkgoWriterOutput string
}

func (s spec) name() string {
	return strings.Join(append(slices.Clone(s.ContainerHierarchyTexts), s.LeafNodeText), " ")
}

// report tells each spec's outcome as one of ours, and how many there were.
func report(t *testing.T, specs []spec) {
	counts := map[string]int{}
	for _, s := range specs {
		counts[s.State]++
		if s.State == "skipped" {
			continue
		}
		t.Run(s.name(), func(t *testing.T) {
			t.Log(s.RunTime.Round(time.Millisecond))
			if s.State != "passed" {
				t.Errorf("%s after %s, %s:%d: %s\n%s", s.State, s.RunTime.Round(time.Millisecond),
					filepath.Base(s.Failure.Location.FileName), s.Failure.Location.LineNumber, s.Failure.Message, end(s.CapturedGinkgoWriterOutput, 3000))
			}
		})
	}
	passed, failed := counts["passed"], len(specs)-counts["passed"]-counts["skipped"]
	fmt.Printf("critest, %s: critest_passed %d, critest_failed %d, skipped %d\n", strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), passed, failed, counts["skipped"])
	if os.Getenv("CRITEST_FOCUS") == "" && passed+failed < least {
		t.Errorf("%d specs were run, want at least %d", passed+failed, least)
	}
}

// run runs what the tables leave, or of that what CRITEST_FOCUS matches.
func (n *node) run(endpoint string, tables ...map[string]string) []spec {
	n.t.Helper()
	args := []string{"--ginkgo.skip=" + strings.Join(patterns(tables...), "|")}
	if focus := os.Getenv("CRITEST_FOCUS"); focus != "" {
		args = append(args, "--ginkgo.focus="+focus)
	}
	return n.critest(endpoint, args...)
}

// patterns are those of tables, sorted.
func patterns(tables ...map[string]string) []string {
	var all []string
	for _, table := range tables {
		all = slices.AppendSeq(all, maps.Keys(table))
	}
	slices.Sort(all)
	return all
}

// critest runs it, and returns what it tells of its specs. That some failed is no error.
func (n *node) critest(endpoint string, args ...string) []spec {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(n.t.Context(), suiteLimit)
	defer cancel()
	file := filepath.Join(n.Dir, "report.json")
	args = append([]string{
		"--config", n.config, "--runtime-endpoint", endpoint, "--image-endpoint", endpoint, "--runtime-handler", n.handler,
		"--ginkgo.no-color", "--ginkgo.succinct", "--ginkgo.timeout=" + (suiteLimit - queryLimit).String(), "--ginkgo.json-report=" + file,
	}, args...)
	out, runErr := n.Output(ctx, "critest.test", args...)
	var suites []struct{ SpecReports []spec }
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &suites)
	}
	if err != nil || len(suites) != 1 {
		n.t.Fatalf("critest: %v, %v; it ends:\n%s", err, runErr, end(out, 3000))
	}
	return slices.DeleteFunc(suites[0].SpecReports, func(s spec) bool { return s.LeafNodeType != "It" })
}

func end(s string, n int) string { return s[max(0, len(s)-n):] }

// A node is a world whose containerd pulls critest's images from a registry of ours.
type node struct {
	*harness.World
	t               *testing.T
	config, handler string // of critest
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, handler: "hibernate"}
	n.World = harness.New(t, harness.Options{
		CRI: true, Daemon: true, Published: true, PodAnnotations: []string{"io.kubernetes.*"}, Settings: map[string]string{"mode": `"manual"`},
	})
	n.config = filepath.Join(n.Dir, "crictl.yaml")
	busybox, err := n.Image("busybox")
	if err == nil {
		err = os.WriteFile(n.config, fmt.Appendf(nil, "timeout: %d\n", int(queryLimit.Seconds())), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	registry, err := n.Registry("-busybox", busybox, "-standin", n.Program("standin"))
	if err == nil {
		err = registry.Start(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := registry.Kill(); err != nil {
			t.Error(err)
		}
		n.forget()
	})
	return n
}

// forget removes the pods that a spec which failed has left, and the control group above those of all pods, unless others use it.
func (n *node) forget() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(n.t.Context()), queryLimit)
	defer cancel()
	crictl := []string{"--config", n.config, "--runtime-endpoint", "unix://" + n.Address()}
	left, err := n.Output(ctx, "crictl", append(crictl, "pods", "--quiet")...)
	for _, id := range strings.Fields(left) {
		if err == nil {
			_, err = n.Output(ctx, "crictl", append(crictl, "rmp", "--force", id)...)
		}
	}
	if err != nil {
		n.t.Error("remove pods:", err)
	}
	for _, pattern := range []string{"/sys/fs/cgroup/k8s.io", "/sys/fs/cgroup/*/k8s.io"} {
		groups, _ := filepath.Glob(pattern)
		for _, group := range groups {
			_ = os.Remove(group) // it isn't empty where others use it
		}
	}
}
