package snapshot

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// SpecDiff names the fields of spec that keep its container from waking with a
// snapshot of frozen, the JSON of a spec as in [Container].Spec: as in
// "process.args[2]", "process.env.LANG" or "mounts[/data].options", sorted.
// It is empty exactly when the digests are equal. It never tells values, which
// may be secrets.
func SpecDiff(frozen json.RawMessage, spec *specs.Spec) ([]string, error) {
	var old specs.Spec
	if err := json.Unmarshal(frozen, &old); err != nil {
		return nil, fmt.Errorf("frozen spec: %w", err)
	}
	a, err := relevant(&old)
	if err != nil {
		return nil, err
	}
	b, err := relevant(spec)
	if err != nil {
		return nil, err
	}
	out := diff("", a, b, nil)
	slices.Sort(out)
	return out, nil
}

func diff(path string, a, b any, out []string) []string {
	if reflect.DeepEqual(a, b) {
		return out
	}
	oa, okA := a.(object)
	ob, okB := b.(object)
	if okA && okB {
		return diffObjects(path, oa, ob, out)
	}
	la, okA := a.([]any)
	lb, okB := b.([]any)
	if okA && okB {
		return diffLists(path, la, lb, out)
	}
	return append(out, path)
}

func diffObjects(path string, a, b object, out []string) []string {
	for k := range merged(a, b) {
		sub := k
		if path != "" {
			sub = path + "." + k
		}
		out = diff(sub, a[k], b[k], out)
	}
	return out
}

// diffLists compares by what names the elements, where something does, so
// that one mount more does not name all behind it.
func diffLists(path string, a, b []any, out []string) []string {
	na, okA := named(a)
	nb, okB := named(b)
	if okA && okB && !reflect.DeepEqual(na, nb) {
		for k := range merged(na, nb) {
			out = diff(fmt.Sprintf("%s[%s]", path, k), na[k], nb[k], out)
		}
		return out
	}
	if okA && okB || len(a) != len(b) {
		return append(out, path) // Same elements in another order, or another number.
	}
	for i := range a {
		out = diff(fmt.Sprintf("%s[%d]", path, i), a[i], b[i], out)
	}
	return out
}

// named makes a map of a list whose elements have unique names, or says that
// it can't.
func named(list []any) (object, bool) {
	out := object{}
	for _, e := range list {
		name, ok := nameOf(e)
		if !ok || out[name] != nil {
			return nil, false
		}
		out[name] = e
	}
	return out, true
}

func nameOf(e any) (string, bool) {
	o, ok := e.(object)
	if !ok {
		return "", false
	}
	for _, key := range []string{"destination", "path", "type"} {
		if s, ok := o[key].(string); ok {
			return s, true
		}
	}
	return "", false
}

func merged(a, b object) map[string]bool {
	keys := map[string]bool{}
	for k := range a {
		keys[k] = true
	}
	for k := range b {
		keys[k] = true
	}
	return keys
}
