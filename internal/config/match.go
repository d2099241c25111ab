package config

import (
	"errors"
	"fmt"
	"maps"
	"strings"
)

// ruleTable is the name of the tables that hold match rules.
const ruleTable = "match"

// The selectors of a rule; all others of its keys are settings.
const (
	selectNamespace = "namespace"
	selectImage     = "image"
	selectLabels    = "labels"
)

// Match is what rules see of a workload.
type Match struct {
	Namespace string // containerd's
	Image     string // as the client named it
	Labels    map[string]string
}

// rule sets values for the workloads that all its selectors match. In a pattern * stands for any text.
type rule struct {
	origin    string
	namespace string
	image     string
	labels    map[string]string
	values    map[string]any
}

func parseRule(origin string, item any) (rule, error) {
	r := rule{origin: origin, labels: map[string]string{}}
	table, ok := item.(map[string]any)
	if !ok {
		return r, fmt.Errorf("%s: not a table", origin)
	}
	r.values = maps.Clone(table)
	selectors := 0
	var errs []error
	for _, s := range []struct {
		name string
		take func(any) error
	}{
		{selectNamespace, takeText(&r.namespace)},
		{selectImage, takeText(&r.image)},
		{selectLabels, r.takeLabels},
	} {
		v, ok := table[s.name]
		if !ok {
			continue
		}
		selectors++
		delete(r.values, s.name)
		if err := s.take(v); err != nil {
			errs = append(errs, &Error{Key: s.name, Origin: origin, Problem: err.Error()})
		}
	}
	if selectors == 0 {
		errs = append(errs, fmt.Errorf("%s: no selector (namespace, image or labels): it would match everything", origin))
	}
	return r, errors.Join(errs...)
}

func takeText(to *string) func(any) error {
	return func(v any) error {
		s, ok := v.(string)
		if !ok || s == "" {
			return errors.New("not a pattern: a text in which * stands for any text")
		}
		*to = s
		return nil
	}
}

func (r *rule) takeLabels(v any) error {
	table, ok := v.(map[string]any)
	if !ok || len(table) == 0 {
		return errors.New(`not a table of patterns, such as { app = "redis" }`)
	}
	for name, pattern := range table {
		s, ok := pattern.(string)
		if !ok {
			return fmt.Errorf("the pattern of label %s is no text", name)
		}
		r.labels[name] = s
	}
	return nil
}

// matches reports whether every selector of the rule fits. A label that is missing fits no pattern.
func (r *rule) matches(m Match) bool {
	if r.namespace != "" && !glob(r.namespace, m.Namespace) {
		return false
	}
	if r.image != "" && !glob(r.image, m.Image) {
		return false
	}
	for name, pattern := range r.labels {
		value, ok := m.Labels[name]
		if !ok || !glob(pattern, value) {
			return false
		}
	}
	return true
}

// glob matches s against a pattern in which * stands for any text, slashes included, and all else for itself.
func glob(pattern, s string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	if last == 0 {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, parts[0])
	if !ok {
		return false
	}
	for _, part := range parts[1:last] {
		if _, s, ok = strings.Cut(s, part); !ok {
			return false
		}
	}
	return strings.HasSuffix(s, parts[last])
}
