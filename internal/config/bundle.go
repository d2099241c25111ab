package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/hibernate-runtime/hibernate/internal/atomicfile"
)

// savedVersion is the version of the saved form.
const savedVersion = 1

// saved is the form of a Config in a bundle.
type saved struct {
	Version  int            `json:"version"`
	Settings []savedSetting `json:"settings"`
}

type savedSetting struct {
	Key    string   `json:"key"`
	Values []string `json:"values"`
	Source string   `json:"source"`
}

// Save writes the effective configuration to a file that Read understands, replacing it whole.
func (c *Config) Save(path string) error {
	s := saved{Version: savedVersion}
	for _, k := range Keys() {
		s.Settings = append(s.Settings, savedSetting{k.Name, k.get(c), c.Source(k.Name)})
	}
	text, err := json.MarshalIndent(s, "", "\t")
	if err != nil {
		return fmt.Errorf("save configuration: %w", err)
	}
	if err := atomicfile.Write(path, append(text, '\n'), 0o600, atomicfile.Options{}); err != nil {
		return fmt.Errorf("save configuration: %w", err)
	}
	return nil
}

// Read returns the configuration that Save wrote. A key that this version doesn't know is left out, and one that the
// file lacks has its default, since the shim that reads may be newer or older than the one that wrote. A missing file
// is fs.ErrNotExist.
func Read(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read saved configuration: %w", err)
	}
	var s saved
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("read saved configuration %s: %w", path, err)
	}
	c := Default()
	var errs []error
	for _, item := range s.Settings {
		k, ok := lookup(item.Key)
		if !ok {
			continue
		}
		if err := k.set(c, item.Values); err != nil {
			errs = append(errs, &Error{Key: item.Key, Origin: "file " + path, Value: display(item.Values), Problem: err.Error(), Allowed: k.Kind})
			continue
		}
		c.sources[item.Key] = item.Source
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return c, nil
}
