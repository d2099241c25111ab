package config

import (
	"slices"
	"testing"
)

// A command line is taken apart as a shell does it, and is the same when it is written and read again.
func TestCommandLines(t *testing.T) {
	for line, want := range map[string][]string{
		"":                               nil,
		"  ":                             nil,
		"/bin/flush --all":               {"/bin/flush", "--all"},
		"\t/bin/sh  -c\n'echo \"$A\"'":   {"/bin/sh", "-c", `echo "$A"`},
		`/bin/x "a 'b' \" c" d\ e ''`:    {"/bin/x", `a 'b' " c`, "d e", ""},
		`/bin/x 'it'\''s' a"b"'c'`:       {"/bin/x", "it's", "abc"},
		`/bin/x '\' "\\" # $HOME * {} ;`: {"/bin/x", `\`, `\`, "#", "$HOME", "*", "{}", ";"},
	} {
		got, err := split(line)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%q: %q, %v; want %q", line, got, err, want)
		}
		if again, err := split(join(got)); err != nil || !slices.Equal(again, want) {
			t.Errorf("%q: written as %q, and read as %q, %v", line, join(got), again, err)
		}
	}
	for _, line := range []string{`/bin/x 'a`, `/bin/x "a`, `/bin/x \`, `'' a`, "/bin/x a\x00b"} {
		if got, err := split(line); err == nil {
			t.Errorf("%q is taken for %q", line, got)
		}
	}
}
