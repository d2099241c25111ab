package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// document is a configuration text: its own values and its match rules.
type document struct {
	origin string // "file /etc/hibernate/config.toml"
	values map[string]any
	rules  []rule
}

// readFile reads and parses a file. DefaultFile may be missing.
func readFile(path string) (*document, error) {
	text, err := os.ReadFile(path)
	if path == DefaultFile && errors.Is(err, fs.ErrNotExist) {
		return &document{origin: "file " + path}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	return parseDocument("file "+path, text)
}

// parseDocument parses TOML. The errors of all its rules are joined.
func parseDocument(origin string, text []byte) (*document, error) {
	d := &document{origin: origin, values: map[string]any{}}
	if err := toml.Unmarshal(text, &d.values); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			line, column := syntax.Position()
			return nil, fmt.Errorf("%s: line %d, column %d: %w", origin, line, column, err)
		}
		return nil, fmt.Errorf("%s: %w", origin, err)
	}
	found, ok := d.values[ruleTable]
	if !ok {
		return d, nil
	}
	delete(d.values, ruleTable)
	list, ok := found.([]any)
	if !ok {
		return nil, fmt.Errorf("%s: %s: write each rule as a [[%s]] table", origin, ruleTable, ruleTable)
	}
	var errs []error
	for i, item := range list {
		r, err := parseRule(fmt.Sprintf("%s rule %d of %s", ruleTable, i+1, origin), item)
		d.rules, errs = append(d.rules, r), append(errs, err)
	}
	return d, errors.Join(errs...)
}

// dropForeign removes what containerd's CRI plugin leaves in a ConfigBody: its own option names.
func (d *document) dropForeign() {
	for name := range d.values {
		if slices.ContainsFunc([]string{"TypeUrl", "ConfigPath", "ConfigBody"}, func(s string) bool {
			return strings.EqualFold(s, name)
		}) {
			delete(d.values, name)
		}
	}
}

// rawOf turns a TOML value into text.
func rawOf(v any) (raw, error) {
	if list, ok := v.([]any); ok {
		out := make(raw, 0, len(list))
		for _, item := range list {
			s, err := scalar(item)
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
		return out, nil
	}
	s, err := scalar(v)
	return raw{s}, err
}

func scalar(v any) (string, error) {
	switch v := v.(type) {
	case string:
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'g', -1, 64), nil
	default:
		return "", errors.New("neither a text, a number, a truth value nor a list of them")
	}
}
