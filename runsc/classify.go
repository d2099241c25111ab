package runsc

import "strings"

// rule maps text of runsc's messages to a kind. All substrings must occur.
type rule struct {
	kind     error
	contains []string
}

// rules are tried in order; testdata holds the captured output behind each.
var rules = []rule{
	{ErrNoSpace, []string{"no space left on device"}},
	{ErrExists, []string{"container already exists"}},
	{ErrNotFound, []string{"loading container", "file does not exist"}},
	{ErrBundle, []string{"reading spec"}},
}

// classify names the kind of a message, or nil.
func classify(command, message string) error {
	for _, r := range rules {
		if matches(message, r.contains) {
			return r.kind
		}
	}
	return nil
}

func matches(message string, parts []string) bool {
	for _, p := range parts {
		if !strings.Contains(message, p) {
			return false
		}
	}
	return true
}
