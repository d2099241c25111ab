package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
)

// A figure is one line of the report. Goal is a comparison, as "<= 1.15", or empty.
type figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  string  `json:"goal"`
	Runs  int     `json:"runs"`
}

// verdict is empty without a goal.
func (f figure) verdict() string {
	relation, text, ok := strings.Cut(f.Goal, " ")
	if !ok {
		return ""
	}
	limit, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return "goal?"
	}
	if relation == "<=" && f.Value <= limit || relation == ">=" && f.Value >= limit {
		return "ok"
	}
	return "missed"
}

// report gathers figures; those of a transition's stages come last.
type report struct{ figures, stages []figure }

func (r *report) add(name string, value float64, unit, goal string, runs int) {
	r.figures = append(r.figures, figure{name, value, unit, goal, runs})
}

func (r *report) addStage(name string, value float64, runs int) {
	r.stages = append(r.stages, figure{name, value, "ms", "", runs})
}

func (r *report) print(out io.Writer) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "FIGURE\tVALUE\tUNIT\tGOAL\t\tRUNS")
	for _, f := range append(r.figures, r.stages...) {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%d\n", f.Name, short(f.Value), f.Unit, f.Goal, f.verdict(), f.Runs)
	}
	_ = t.Flush()
}

// short keeps three digits or more.
func short(v float64) string {
	switch {
	case v == float64(int64(v)):
		return strconv.FormatInt(int64(v), 10)
	case v >= 1000:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case v >= 100:
		return strconv.FormatFloat(v, 'f', 1, 64)
	}
	return strconv.FormatFloat(v, 'f', 2, 64)
}

// keep adds the figures of an earlier run that this one doesn't have.
func (r *report) keep(path string) error {
	text, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	have := map[string]bool{}
	for _, f := range append(r.figures, r.stages...) {
		have[f.Name] = true
	}
	for line := range strings.Lines(string(text)) {
		var f figure
		if err := json.Unmarshal([]byte(line), &f); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if !have[f.Name] {
			r.figures = append(r.figures, f)
		}
	}
	return nil
}

// write replaces the file with one JSON object a figure.
func (r *report) write(path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var b strings.Builder
	lines := json.NewEncoder(&b)
	lines.SetEscapeHTML(false)
	for _, f := range append(r.figures, r.stages...) {
		if err := lines.Encode(f); err != nil {
			return fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	return os.WriteFile(path, []byte(b.String()), 0o644)
}
