package metrics

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

var update = flag.Bool("update", false, "write the table in docs/METRICS.md")

const (
	document   = "../../docs/METRICS.md"
	operations = "../../docs/OPERATIONS.md"
	rules      = "../../contrib/prometheus/hibernate-alerts.yaml"
	rulesTest  = "../../contrib/prometheus/hibernate-alerts_test.yaml"
	dayTest    = "../../contrib/prometheus/hibernate-alerts-day_test.yaml"
	dashboard  = "../../contrib/grafana/hibernate.json"

	tableBegins, tableEnds = "<!-- go test ./daemon/metrics -update writes this table -->\n", "<!-- end of the table -->\n"
)

// used are metrics of which each has a value.
func used() *Metrics {
	m := New("v1", func() Snapshot {
		return Snapshot{Workloads: map[Class]int{{State: "awake", Mode: "auto"}: 1}, Store: &Store{}}
	})
	m.Transition(&shimv1.Transition{Kind: "wake", Outcome: "restored"})
	m.Transition(&shimv1.Transition{Kind: "hibernate", Outcome: "slept"})
	m.WakeCallFailed()
	m.Refused("aborted")
	m.Observed("default", 1)
	m.Held("default")
	m.Accepted()
	m.Limited()
	m.Drained(1, 1, time.Second, nil)
	m.WakeWaited(time.Second)
	m.WakeRefused("memory")
	m.ClientRefused("http", "memory")
	m.RoomMade("slept")
	m.ShimSilent()
	m.SelfProbed(nil)
	m.Uploaded("committed", 1, 1, time.Second)
	m.StoreOp(store.Op("get"), "ok", 1)
	m.Collected(1, 1)
	m.Expired("sleeper")
	m.Claimed("new")
	m.Released()
	m.Fenced()
	return m
}

// family is a metric's name, its type, labels and meaning.
type family struct {
	kind, help string
	labels     []string
}

// families are ours, by name.
func families(t *testing.T) map[string]*family {
	t.Helper()
	m := used()
	gathered, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]*family)
	for _, f := range gathered {
		if !strings.HasPrefix(f.GetName(), "hibernate_") {
			continue
		}
		told := &family{kind: strings.ToLower(f.GetType().String()), help: f.GetHelp()}
		for _, l := range f.GetMetric()[0].GetLabel() {
			told.labels = append(told.labels, "`"+l.GetName()+"`")
		}
		all[f.GetName()] = told
	}
	descs := make(chan *prometheus.Desc)
	go func() {
		m.registry.Describe(descs)
		close(descs)
	}()
	for d := range descs {
		name := regexp.MustCompile(`fqName: "(hibernate_[^"]*)"`).FindStringSubmatch(d.String())
		if name != nil && all[name[1]] == nil {
			t.Errorf("%s has no value: have used() in this test give it one, and then -update the table", name[1])
		}
	}
	return all
}

// Each metric is in the table, with its type, labels and meaning, and no other.
func TestEachMetricIsDocumented(t *testing.T) {
	var table strings.Builder
	table.WriteString("| name | type | labels | meaning |\n|---|---|---|---|\n")
	all := families(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		f := all[name]
		fmt.Fprintf(&table, "| `%s` | %s | %s | %s |\n", name, f.kind, strings.Join(f.labels, ", "), strings.ReplaceAll(f.help, "|", "\\|"))
	}
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, begins := strings.Cut(string(text), tableBegins)
	got, tail, ends := strings.Cut(rest, tableEnds)
	if !begins || !ends {
		t.Fatalf("%s has no table", document)
	}
	if *update {
		if err := os.WriteFile(document, []byte(head+tableBegins+table.String()+tableEnds+tail), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != table.String() {
		t.Errorf("the table in docs/METRICS.md is not that of the metrics: go test ./daemon/metrics -update writes it. Want:\n%s", table.String())
	}
}

// known reports whether a name that an expression has is one of the metrics', or a part of a histogram.
func known(all map[string]*family, name string) bool {
	if all[name] != nil {
		return true
	}
	for _, part := range []string{"_bucket", "_sum", "_count"} {
		base, is := strings.CutSuffix(name, part)
		if is && all[base] != nil && all[base].kind == "histogram" {
			return true
		}
	}
	return false
}

var metricName = regexp.MustCompile(`hibernate_[a-z_]+`)

// alerts are the names that a pattern finds in files.
func alerts(t *testing.T, pattern string, paths ...string) (names []string) {
	t.Helper()
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(pattern).FindAllSubmatch(text, -1) {
			names = append(names, string(m[1]))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Rules and dashboard name no metric that there isn't.
func TestRulesAndDashboardNameMetrics(t *testing.T) {
	all := families(t)
	for _, path := range []string{rules, rulesTest, dayTest, dashboard} {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		names := metricName.FindAllString(string(text), -1)
		if len(names) < 2 {
			t.Errorf("%s names %d metrics", path, len(names))
		}
		for _, name := range names {
			if !known(all, name) {
				t.Errorf("%s names %s, which is no metric", filepath.Base(path), name)
			}
		}
	}
}

// Each alert is tried, and has its paragraph in docs/OPERATIONS.md; and each of those is about one.
func TestEachAlertIsTriedAndExplained(t *testing.T) {
	want := alerts(t, `(?m)^ *- alert: (\w+)$`, rules)
	if len(want) < 10 {
		t.Fatalf("alerts aren't found: %q", want)
	}
	if got := alerts(t, `(?m)^\*\*(Hibernate\w+)\*\*`, operations); !slices.Equal(got, want) {
		t.Errorf("docs/OPERATIONS.md explains %q, and there are %q", got, want)
	}
	if got := alerts(t, `(?m)^ *alertname: (\w+)$`, rulesTest, dayTest); !slices.Equal(got, want) {
		t.Errorf("%s tries %q, and there are %q", filepath.Base(rulesTest), got, want)
	}
}

// panel is what is looked at of a dashboard's.
type panel struct {
	ID          int
	Title, Type string
	Description string
	Targets     []struct{ Expr string }
	FieldConfig struct{ Defaults struct{ Unit string } }
}

func TestTheDashboardIsWhole(t *testing.T) {
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Title, UID string
		Panels     []panel
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	ids := map[int]bool{}
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("%q has another one's id, %d", p.Title, p.ID)
		}
		ids[p.ID] = true
		if p.Type == "row" {
			continue
		}
		if p.Title == "" || p.Description == "" || p.FieldConfig.Defaults.Unit == "" || len(p.Targets) == 0 {
			t.Errorf("%q lacks a title, a description, a unit or a query", p.Title)
		}
		for _, target := range p.Targets {
			if !metricName.MatchString(target.Expr) {
				t.Errorf("%q asks for %q", p.Title, target.Expr)
			}
		}
	}
	if d.Title == "" || d.UID == "" || len(ids) < 10 {
		t.Errorf("%q, %q, %d panels", d.Title, d.UID, len(ids))
	}
}

// promtool says that the rules can be loaded, and that each fires when it should, and not before.
func TestPromtool(t *testing.T) {
	path, err := filepath.Abs("../../.tools/promtool")
	if err == nil {
		_, err = os.Stat(path)
	}
	if errors.Is(err, os.ErrNotExist) && os.Getenv("HIBERNATE_PROMTOOL") != "1" {
		t.Skip("make promtool brings it")
	}
	if err != nil {
		t.Fatal("make promtool brings it: ", err)
	}
	for _, args := range [][]string{{"check", "rules", filepath.Base(rules)}, {"test", "rules", filepath.Base(rulesTest), filepath.Base(dayTest)}} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		cmd := exec.CommandContext(ctx, path, args...)
		cmd.Dir = filepath.Dir(rules)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Run(); err != nil {
			t.Errorf("promtool %q: %v\n%s", args, err, out.String())
		}
	}
}
