package config

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// The layers, as Settings names them; match rules are match[1], match[2] …
const (
	SourceDefault    = "default"
	SourceFile       = "file"
	SourceOptions    = "options"
	SourceAnnotation = "annotation"
)

// Input is where a configuration comes from. Whatever is empty adds nothing.
type Input struct {
	File  string // usually DefaultFile; any other must exist
	Match Match
	// Runtime options, as containerd hands them over: the path of a further file, and a text of the same form.
	ConfigPath string
	ConfigBody string
	// All of the container's annotations. Those that are neither ours nor change runsc's flags are left alone.
	Annotations map[string]string
}

// Default returns the configuration that no layer has changed.
func Default() *Config {
	c := &Config{sources: map[string]string{}}
	for _, k := range Keys() {
		// A default that its own parser refuses is a mistake of the table; TestDefaults finds it.
		_ = k.reset(c)
	}
	return c
}

// layer is a set of values to be merged.
type layer struct {
	source string // as Settings names it
	origin string // as errors name it
	values map[string]raw
	least  Scope // a key of a lower scope may not stand here
}

// Load merges all layers. The error joins everything that is wrong, each an *Error where it concerns a key.
func Load(in Input) (*Config, error) {
	c := Default()
	var errs []error
	if in.File != "" {
		d, err := readFile(in.File)
		errs = append(errs, err, c.applyDocument(d, in.Match, SourceFile))
	}
	if in.ConfigPath != "" {
		d, err := readFile(in.ConfigPath)
		errs = append(errs, err, c.applyDocument(d, in.Match, SourceOptions))
	}
	if in.ConfigBody != "" {
		d, err := parseDocument("runtime options (ConfigBody)", []byte(in.ConfigBody))
		if d != nil {
			d.dropForeign()
		}
		errs = append(errs, err, c.applyDocument(d, in.Match, SourceOptions))
	}
	errs = append(errs, c.applyAnnotations(in.Annotations), checkFlagAnnotations(in.Annotations))
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}

// applyDocument merges a document's values, then those of its rules that match. Rules that don't are checked all the
// same, so that a mistake is found at the first start and not at the first match. A nil document is none.
func (c *Config) applyDocument(d *document, m Match, source string) error {
	if d == nil {
		return nil
	}
	errs := []error{c.applyTable(d.values, layer{source: source, origin: d.origin, least: ScopeNode})}
	scratch := Default()
	for i, r := range d.rules {
		target := scratch
		if r.matches(m) {
			target = c
		}
		l := layer{source: source, origin: r.origin, least: ScopeRuntime}
		if source == SourceFile {
			l.source = fmt.Sprintf("%s[%d]", ruleTable, i+1)
		}
		errs = append(errs, target.applyTable(r.values, l))
	}
	return errors.Join(errs...)
}

func (c *Config) applyTable(values map[string]any, l layer) error {
	l.values = map[string]raw{}
	var errs []error
	for name, v := range values {
		r, err := rawOf(v)
		if _, known := lookup(name); err != nil && known {
			errs = append(errs, &Error{Key: name, Origin: l.origin, Problem: err.Error()})
			continue
		}
		l.values[name] = r
	}
	return errors.Join(append(errs, c.apply(l, nil))...)
}

func (c *Config) applyAnnotations(all map[string]string) error {
	l := layer{
		source: SourceAnnotation, origin: "annotation", values: map[string]raw{}, least: ScopeWorkload,
	}
	for name, v := range all {
		if key, ok := strings.CutPrefix(name, AnnotationPrefix); ok {
			l.values[key] = raw{strings.TrimSpace(v)}
		}
	}
	node := *c
	return c.apply(l, &node)
}

// apply merges a layer. With node, a value must also be one that the node's lets it be.
func (c *Config) apply(l layer, node *Config) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(l.values)) {
		if err := c.applyOne(l, name, node); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (c *Config) applyOne(l layer, name string, node *Config) error {
	e := &Error{Key: l.prefix() + name, Origin: l.origin, Value: display(l.values[name])}
	k, ok := lookup(name)
	switch {
	case !ok:
		return unknown(name, l)
	case k.Single && (l.source == SourceFile || strings.HasPrefix(l.source, ruleTable)):
		e.Value, e.Problem = "", "it is one workload's alone: set it by an annotation, or by runtime options"
		return e
	case k.Scope < l.least:
		e.Value, e.Problem = "", fmt.Sprintf("a %s setting, which %s may not change", k.Scope, l.least.place())
		return e
	}
	if err := k.set(c, l.values[name]); err != nil {
		e.Problem, e.Allowed = err.Error(), k.Kind
		return e
	}
	if node != nil && k.allows != nil && !k.allows(node, c) {
		e.Problem = fmt.Sprintf("beyond the node's %s (set by: %s)", display(k.get(node)), node.Source(name))
		e.Allowed = k.Tighten
		return e
	}
	c.sources[name] = l.source
	return nil
}

// prefix comes before a key's name where the layer is written.
func (l layer) prefix() string {
	if l.least == ScopeWorkload {
		return AnnotationPrefix
	}
	return ""
}

// accepts returns the names that may stand in the layer, without the prefix.
func (l layer) accepts() []string {
	var names []string
	for _, k := range Keys() {
		if k.Scope >= l.least {
			names = append(names, k.Name)
		}
	}
	if l.least == ScopeRuntime {
		names = append(names, selectNamespace, selectImage, selectLabels)
	}
	return names
}
