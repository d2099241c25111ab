package config

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/CONFIGURATION.md")

func TestDocument(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "CONFIGURATION.md")
	want := Document()
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s isn't what the table says: run go generate ./internal/config", path)
	}
	for _, k := range Keys() {
		if k.Doc == "" || !strings.HasSuffix(k.Doc, ".") && !strings.HasSuffix(k.Doc, ")") {
			t.Errorf("%s: no sentence says what it is: %q", k.Name, k.Doc)
		}
	}
}

func TestSaveAndRead(t *testing.T) {
	c, err := Load(Input{
		File:        write(t, "runsc-flags = [\"--strace-syscalls=a,b\"]\n[[match]]\nnamespace = \"*\"\nmode = \"manual\"\n"),
		Annotations: annotated("ports", "none"),
	})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "config.json")
	if err := c.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got.Settings(), c.Settings()) || got.Ports == nil || len(got.RunscFlags) != 1 {
		t.Errorf("read %v\nsaved %v", got.Settings(), c.Settings())
	}
}

func TestReadOfAnotherVersion(t *testing.T) {
	path := filepath.Join(t.TempDir(), "config.json")
	text := `{"version":2,"settings":[{"key":"of-the-future","values":["x"],"source":"file"},
		{"key":"mode","values":["off"],"source":"match[1]"}]}`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if c.Mode != ModeOff || c.Source("mode") != "match[1]" || c.RunDir != "/run/hibernate" {
		t.Errorf("read %+v", c)
	}
	if _, err := Read(path + ".none"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("missing file: %v", err)
	}
}

func TestGlob(t *testing.T) {
	for _, tc := range []struct {
		pattern, s string
		want       bool
	}{
		{"", "", true}, {"a", "a", true}, {"a", "ab", false}, {"*", "", true}, {"*", "a/b", true},
		{"a*", "abc", true}, {"*c", "abc", true}, {"a*c", "ac", true}, {"a*c", "ab", false},
		{"a*b*c", "a-b-b-c", true}, {"ab*ba", "aba", false}, {"*/redis:*", "docker.io/library/redis:8", true},
		{"*redis*redis*", "redis", false}, {"a**b", "ab", true},
	} {
		if got := glob(tc.pattern, tc.s); got != tc.want {
			t.Errorf("glob(%q, %q) = %t", tc.pattern, tc.s, got)
		}
	}
}

func TestFindProgram(t *testing.T) {
	beside, inPath := t.TempDir(), t.TempDir()
	t.Setenv("PATH", inPath)
	for _, p := range []string{filepath.Join(beside, "both"), filepath.Join(inPath, "both"), filepath.Join(inPath, "one")} {
		if err := os.WriteFile(p, []byte("#!/bin/sh\n"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct{ name, want string }{
		{"both", filepath.Join(beside, "both")},
		{"one", filepath.Join(inPath, "one")},
		{filepath.Join(inPath, "both"), filepath.Join(inPath, "both")},
		{"none", ""},
		{"/nowhere/none", ""},
	} {
		got, err := findProgram(tc.name, beside)
		if got != tc.want || (err == nil) != (tc.want != "") {
			t.Errorf("findProgram(%q) = %q, %v; want %q", tc.name, got, err, tc.want)
		}
	}
}
