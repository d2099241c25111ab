package command

import (
	"fmt"
	"slices"
	"strings"

	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// unknownError means that a name fits no workload, or more than one.
type unknownError struct {
	name       string
	ambiguous  bool
	candidates []node.Key
}

// shownCandidates bounds the list in an error.
const shownCandidates = 8

// Error names the candidates.
func (e *unknownError) Error() string {
	var names []string
	for _, key := range e.candidates[:min(len(e.candidates), shownCandidates)] {
		names = append(names, key.String())
	}
	list := strings.Join(names, ", ")
	if more := len(e.candidates) - len(names); more > 0 {
		list += fmt.Sprintf(" and %d more", more)
	}
	switch {
	case e.ambiguous:
		return fmt.Sprintf("%q is ambiguous: %s", e.name, list)
	case list == "":
		return fmt.Sprintf("no workload %q: there is none on this node", e.name)
	default:
		return fmt.Sprintf("no workload %q; there is %s", e.name, list)
	}
}

// resolve finds the workload that a person means: an exact ID first, else the only one that begins so. A namespace before
// a slash narrows it. The error is an *unknownError.
func resolve(keys []node.Key, name string) (node.Key, error) {
	namespace, id, given := strings.Cut(name, "/")
	if !given {
		namespace, id = "", name
	}
	within := slices.DeleteFunc(slices.Clone(keys), func(k node.Key) bool { return given && k.Namespace != namespace })
	for _, fits := range []func(string) bool{
		func(s string) bool { return s == id },
		func(s string) bool { return id != "" && strings.HasPrefix(s, id) },
	} {
		var found []node.Key
		for _, key := range within {
			if fits(key.ID) {
				found = append(found, key)
			}
		}
		slices.SortFunc(found, node.Key.Compare)
		if len(found) == 1 {
			return found[0], nil
		}
		if len(found) > 1 {
			return node.Key{}, &unknownError{name: name, ambiguous: true, candidates: found}
		}
	}
	all := slices.SortedFunc(slices.Values(keys), node.Key.Compare)
	return node.Key{}, &unknownError{name: name, candidates: all}
}
