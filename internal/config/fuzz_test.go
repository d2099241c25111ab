package config

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// What is accepted must survive a bundle unchanged.
func roundTrip(t *testing.T, c *Config) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.json")
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatalf("read back: %v", err)
	}
	if !reflect.DeepEqual(got.Settings(), c.Settings()) {
		t.Fatalf("read back %v, want %v", got.Settings(), c.Settings())
	}
}

func FuzzAnnotation(f *testing.F) {
	for _, k := range Keys() {
		f.Add(k.Name, k.Default)
	}
	f.Add("ports", "1-65535")
	f.Add("ports", "18446744073709551616")
	f.Add("wake-timeout", "9223372036854775807ns")
	f.Fuzz(func(t *testing.T, key, value string) {
		if c, err := Load(Input{Annotations: map[string]string{AnnotationPrefix + key: value}}); err == nil {
			roundTrip(t, c)
		}
	})
}

func FuzzDocument(f *testing.F) {
	f.Add("idle-timeout = \"5m\"\nports = [80]\n[[match]]\nnamespace = \"*\"\nmode = \"off\"\n")
	f.Add("min-free-disk = \"18446744073709551615TiB\"")
	f.Add("match = [1, {}, {labels = {}}]")
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Load(Input{ConfigBody: text, Match: Match{Namespace: "default"}}); err == nil {
			roundTrip(t, c)
		}
	})
}

func FuzzGlob(f *testing.F) {
	f.Add("a*b", "a-b")
	f.Fuzz(func(t *testing.T, pattern, s string) {
		glob(pattern, s)
		if !strings.Contains(s, "*") && !glob("*"+s+"*", "x"+s+"y") {
			t.Errorf("*%s* doesn't match x%sy", s, s)
		}
	})
}
