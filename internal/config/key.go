package config

import "fmt"

// Scope says in which layers a key may stand.
type Scope int

const (
	// ScopeNode is for what a node has one of: only the top of a file, or the runtime options.
	ScopeNode Scope = iota
	// ScopeRuntime is for the administrator to decide per workload: also in match rules, never in an annotation.
	ScopeRuntime
	// ScopeWorkload may stand anywhere, annotations included.
	ScopeWorkload
)

// String names the scope as docs/CONFIGURATION.md does.
func (s Scope) String() string {
	return [...]string{"node", "runtime", "workload"}[s]
}

// place names the narrowest layer that a key of the scope may stand in.
func (s Scope) place() string {
	return [...]string{"a file", "a match rule", "an annotation"}[s]
}

// Key is one row of the table.
type Key struct {
	Name    string
	Kind    string // the values allowed, for people
	Default string
	Doc     string
	Scope   Scope
	// Tighten says what an annotation may do with the node's value; "" where it may set any.
	Tighten string
	// Single marks a key whose value is one workload's alone: it may stand in an annotation and in runtime options, not in a file.
	Single bool

	reset  func(*Config) error // to the default
	set    func(*Config, raw) error
	get    func(*Config) raw
	allows func(node, asked *Config) bool // nil: an annotation may set any value
}

// raw is a value as it is written: one text, or a list of them.
type raw []string

// codec reads and writes the values of one type.
type codec[T any] struct {
	kind   string
	parse  func(raw) (T, error)
	format func(T) raw
}

// setting is a Key before its type is erased.
type setting[T any] struct {
	name    string
	scope   Scope
	codec   codec[T]
	field   func(*Config) *T
	def     raw
	doc     string
	tighten string
	single  bool
	allows  func(node, asked T) bool
}

func (s setting[T]) key() Key {
	k := Key{
		Name: s.name, Kind: s.codec.kind, Default: display(s.def), Doc: s.doc, Scope: s.scope, Tighten: s.tighten, Single: s.single,
		get: func(c *Config) raw { return s.codec.format(*s.field(c)) },
		set: func(c *Config, r raw) error {
			v, err := s.codec.parse(r)
			if err == nil {
				*s.field(c) = v
			}
			return err
		},
	}
	if s.allows != nil {
		k.allows = func(node, asked *Config) bool { return s.allows(*s.field(node), *s.field(asked)) }
	}
	k.reset = func(c *Config) error { return k.set(c, s.def) }
	return k
}

// lookup returns the row of that name.
func lookup(name string) (Key, bool) {
	for _, k := range Keys() {
		if k.Name == name {
			return k, true
		}
	}
	return Key{}, false
}

// one returns the only text of a scalar.
func one(r raw) (string, error) {
	if len(r) != 1 {
		return "", fmt.Errorf("%d values where one is expected", len(r))
	}
	return r[0], nil
}
