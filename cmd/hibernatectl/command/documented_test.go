package command

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/hibernate-runtime/hibernate/daemon/doctor"
)

func operations(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../../docs/OPERATIONS.md")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// between is what stands between two texts.
func between(t *testing.T, text, after, before string) string {
	t.Helper()
	_, rest, found := strings.Cut(text, after)
	part, _, ended := strings.Cut(rest, before)
	if !found || !ended {
		t.Fatalf("docs/OPERATIONS.md has no part between %q and %q", after, before)
	}
	return part
}

// rows are the first cells of a table's.
func rows(table string) (cells []string) {
	for line := range strings.Lines(table) {
		if cell, is := strings.CutPrefix(line, "| "); is {
			cell, _, _ = strings.Cut(cell, " |")
			cells = append(cells, strings.Trim(cell, "`"))
		}
	}
	return cells[1:] // its head
}

func TestExitCodesAreDocumented(t *testing.T) {
	var want []string
	for code := exitOK; code <= exitProblems; code++ {
		want = append(want, fmt.Sprint(code))
		if !strings.Contains(rootHelp, fmt.Sprintf("%d ", code)) {
			t.Errorf("the help tells nothing of exit code %d", code)
		}
	}
	if got := rows(between(t, operations(t), "**Exit codes of hibernatectl**", "\n## ")); !slices.Equal(got, want) {
		t.Errorf("docs/OPERATIONS.md has the exit codes %q, want %q", got, want)
	}
}

func TestChecksOfDoctorAreDocumented(t *testing.T) {
	var want []string
	for _, c := range doctor.Checks() {
		want = append(want, c.Name)
	}
	if got := rows(between(t, operations(t), "`hibernatectl doctor` looks over", "`hibernatectl doctor --bundle")); !slices.Equal(got, want) {
		t.Errorf("docs/OPERATIONS.md has the checks\n%q, want\n%q", got, want)
	}
}

// Each command stands in the README or in docs/OPERATIONS.md.
func TestEachCommandIsDocumented(t *testing.T) {
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	text := operations(t) + string(readme)
	for _, c := range newRoot(nil).Commands() {
		name, _, _ := strings.Cut(c.Use, " ")
		if isCobras(c) {
			continue
		}
		if !strings.Contains(text, "`"+name) && !strings.Contains(text, "hibernatectl "+name) {
			t.Errorf("no document tells of hibernatectl %s", name)
		}
	}
}

func isCobras(c *cobra.Command) bool { return c.Name() == "help" || c.Name() == "completion" }
