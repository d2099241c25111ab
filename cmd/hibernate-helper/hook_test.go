package main

import (
	"slices"
	"testing"
)

func TestParentIn(t *testing.T) {
	for stat, want := range map[string]int{
		"7 (sh) S 3 7 7 0 -1": 3, "8 (a) b) (c) R 12 8": 12, "9 (gone) Z 3 9": -1, "10 (x) X 3 9": -1, "11 (cut": -1, "12 (cut) S": -1, "13 (no) S x 1": -1, "": -1,
	} {
		got, ok := parentIn([]byte(stat))
		if !ok {
			got = -1
		}
		if got != want {
			t.Errorf("%q: the parent is %d, want %d", stat, got, want)
		}
	}
}

func TestCandidates(t *testing.T) {
	t.Setenv("PATH", "/a:/b/c::")
	for name, want := range map[string][]string{"sh": {"/a/sh", "/b/c/sh"}, "/bin/sh": {"/bin/sh"}, "./sh": {"./sh"}} {
		if got := candidates(name); !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}
