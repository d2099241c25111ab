package config

import (
	"fmt"
	"slices"
	"strings"
)

// Error is one thing wrong with the configuration. Load joins all that it finds.
type Error struct {
	Key     string // the key as written
	Origin  string // where it stands: "file /etc/hibernate/config.toml", "annotation", …
	Value   string // the value as written, "" where it doesn't matter
	Problem string
	Allowed string // what would be accepted, "" where nothing would
}

// Error names the key, where it comes from, what is wrong, and what is allowed.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", e.Origin, e.Key)
	if e.Value != "" {
		fmt.Fprintf(&b, " = %q", e.Value)
	}
	fmt.Fprintf(&b, ": %s", e.Problem)
	if e.Allowed != "" {
		fmt.Fprintf(&b, " (allowed: %s)", e.Allowed)
	}
	return b.String()
}

// unknown is the error of a key that isn't in the table, with the nearest of those that the layer accepts.
func unknown(name string, l layer) *Error {
	e := &Error{Key: l.prefix() + name, Origin: l.origin, Problem: "unknown key"}
	if near := nearest(name, l.accepts()); near != "" {
		e.Problem += ", did you mean " + l.prefix() + near + "?"
	} else {
		e.Allowed = strings.Join(l.accepts(), ", ")
	}
	return e
}

// nearest returns the name that differs least, or "" when none is near.
func nearest(name string, names []string) string {
	name = strings.ReplaceAll(strings.ToLower(name), "_", "-")
	best, least := "", max(3, len(name)/2)
	for _, n := range names {
		if d := distance(name, n); d < least {
			best, least = n, d
		}
	}
	return best
}

// distance counts the insertions, deletions and replacements of bytes that turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		next := slices.Clone(row)
		next[0] = i + 1
		for j := range len(b) {
			next[j+1] = min(row[j+1]+1, next[j]+1, row[j])
			if a[i] != b[j] {
				next[j+1] = min(row[j+1], next[j], row[j]) + 1
			}
		}
		row = next
	}
	return row[len(b)]
}
