package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func write(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func annotated(pairs ...string) map[string]string {
	m := map[string]string{"io.kubernetes.cri.container-type": "sandbox"}
	for i := 0; i < len(pairs); i += 2 {
		m[AnnotationPrefix+pairs[i]] = pairs[i+1]
	}
	return m
}

func TestDefaults(t *testing.T) {
	c := Default()
	for _, k := range Keys() {
		if err := k.reset(c); err != nil {
			t.Errorf("default of %s: %v", k.Name, err)
		}
		if got := display(k.get(c)); k.Name != "min-awake" && got != k.Default {
			t.Errorf("default of %s reads %q, is written %q", k.Name, got, k.Default)
		}
		if c.Source(k.Name) != SourceDefault {
			t.Errorf("source of %s = %s", k.Name, c.Source(k.Name))
		}
	}
	if c.IdleTimeout != 5*time.Minute || c.MinAwake != time.Minute || c.Mode != ModeAuto || c.Ports != nil {
		t.Errorf("defaults = %+v", c)
	}
}

func TestLayersReplaceSingleKeys(t *testing.T) {
	file := write(t, `
idle-timeout = "1m"
wake-timeout = "40s"
ports = [80, "8080-8082"]
runsc-flags = ["--strace-syscalls=a,b", "--debug"]
min-awake = "1s"

[[match]]
image = "*/redis:*"
idle-timeout = "2m"
on-stop = "exit"

[[match]]
namespace = "prod*"
labels = { app = "web", tier = "*" }
idle-timeout = "3m"

[[match]]
namespace = "other"
mode = "off"
`)
	options := write(t, `on-restore-failure = "block"`)
	c, err := Load(Input{
		File:        file,
		Match:       Match{Namespace: "production", Image: "docker.io/library/redis:8", Labels: map[string]string{"app": "web", "tier": ""}},
		ConfigPath:  options,
		ConfigBody:  "TypeUrl = \"runtimeoptions.v1.Options\"\nmin-free-disk = \"1GiB\"\n",
		Annotations: annotated("wake-timeout", "20s", "ports", " 443, 80 ", "min-awake", "2s"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]Setting{
		"idle-timeout":       {Value: "3m", Source: "match[2]"},
		"on-stop":            {Value: "exit", Source: "match[1]"},
		"wake-timeout":       {Value: "20s", Source: "annotation"},
		"ports":              {Value: "80, 443", Source: "annotation"},
		"min-awake":          {Value: "2s", Source: "annotation"},
		"runsc-flags":        {Value: "--strace-syscalls=a,b, --debug", Source: "file"},
		"on-restore-failure": {Value: "block", Source: "options"},
		"min-free-disk":      {Value: "1GiB", Source: "options"},
		"mode":               {Value: "auto", Source: "default"},
	}
	for _, s := range c.Settings() {
		if w, ok := want[s.Key]; ok && (s.Value != w.Value || s.Source != w.Source) {
			t.Errorf("%s = %q from %s, want %q from %s", s.Key, s.Value, s.Source, w.Value, w.Source)
		}
	}
	if !reflect.DeepEqual(c.RunscFlags, []string{"--strace-syscalls=a,b", "--debug"}) || !reflect.DeepEqual(c.Ports, []uint16{80, 443}) {
		t.Errorf("lists = %q %v", c.RunscFlags, c.Ports)
	}
}

func TestErrorsSayWhatIsWrong(t *testing.T) {
	for _, tc := range []struct {
		name string
		in   Input
		file string
		want []string
	}{
		{"typo in an annotation", Input{Annotations: annotated("idle-timout", "5m")}, "",
			[]string{"annotation: io.containerd.hibernate/idle-timout", "did you mean io.containerd.hibernate/idle-timeout?"}},
		{"underscore in the file", Input{}, `idle_timeout = "5m"`, []string{"file /", "idle_timeout", "did you mean idle-timeout?"}},
		{"nothing near", Input{Annotations: annotated("colour", "red")}, "", []string{"unknown key", "allowed:", AnnotationPrefix[:5], "wake-timeout"}},
		{"a table of our own making", Input{}, "[shim]\nmode = \"off\"", []string{"shim: unknown key"}},
		{"bad duration", Input{Annotations: annotated("idle-timeout", "5")}, "", []string{`idle-timeout = "5"`, "unit", "allowed: a duration from 100ms"}},
		{"duration out of range", Input{Annotations: annotated("wake-timeout", "10ms")}, "", []string{"out of range", "from 1s to 1h"}},
		{"number for a duration", Input{}, `idle-timeout = 5`, []string{`idle-timeout = "5"`, "unit"}},
		{"port out of range", Input{Annotations: annotated("ports", "80,70000")}, "", []string{`ports = "80,70000"`, "70000 is outside 1 to 65535"}},
		{"port that is none", Input{}, `ports = ["http"]`, []string{"ports", `"http" is no port`}},
		{"backward range", Input{}, `ports = "9-8"`, []string{"backwards"}},
		{"too many ports", Input{}, `ports = "1-2000"`, []string{"more than 128 ports"}},
		{"bad mode", Input{Annotations: annotated("mode", "sometimes")}, "", []string{`mode = "sometimes"`, "allowed: auto, observe, manual, off"}},
		{"bad stop policy", Input{Annotations: annotated("on-stop", "sleep")}, "", []string{"on-stop", "allowed: signal, exit, hibernate"}},
		{"identity with a slash", Input{Annotations: annotated("identity", "other/db")}, "", []string{"identity = \"other/db\"", "other characters"}},
		{"identity that goes up", Input{Annotations: annotated("identity", "..")}, "", []string{"identity", "other characters"}},
		{"identity with a NUL", Input{ConfigBody: `identity = "a\u0000b"`}, "", []string{"identity", "other characters"}},
		{"identity that is too long", Input{Annotations: annotated("identity", strings.Repeat("a", 101))}, "", []string{"more than 100"}},
		{"identity in the file", Input{}, `identity = "db"`, []string{"identity: it is one workload's alone", "annotation"}},
		{"identity in a rule", Input{}, "[[match]]\nnamespace = \"x\"\nidentity = \"db\"", []string{"identity: it is one workload's alone"}},
		{"no such snapshot", Input{Annotations: annotated("restore", "db@0")}, "", []string{"restore", "counted from 1"}},
		{"bad restore", Input{Annotations: annotated("restore", "a/b")}, "", []string{"restore", "allowed: auto, never, IDENTITY"}},
		{"runtime key in an annotation", Input{Annotations: annotated("runsc-flags", "--x")}, "", []string{"runsc-flags: a runtime setting, which an annotation may not change"}},
		{"flag that breaks a restore", Input{}, `runsc-flags = ["--debug", "--overlay2=none"]`, []string{`runsc-flags = "--debug, --overlay2=none"`, "--overlay2 is refused", "checkpoint"}},
		{"node key in an annotation", Input{Annotations: annotated("data-dir", "/tmp")}, "", []string{"data-dir: a node setting"}},
		{"node key in a rule", Input{}, "[[match]]\nnamespace = \"x\"\nrun-dir = \"/x\"", []string{"match rule 1 of file", "run-dir: a node setting, which a match rule may not change"}},
		{"rule without selector", Input{}, "[[match]]\nmode = \"off\"", []string{"match rule 1", "no selector"}},
		{"typo of a selector", Input{}, "[[match]]\nnamespac = \"x\"\nimage = \"y\"", []string{"did you mean namespace?"}},
		{"mistake in a rule that doesn't match", Input{}, "[[match]]\nnamespace = \"x\"\nmode = \"on\"", []string{"match rule 1", `mode = "on"`}},
		{"a rule that is no table", Input{}, `match = 3`, []string{"[[match]]"}},
		{"broken TOML", Input{}, "mode = \"auto\"\nmode = ", []string{"line 2"}},
		{"broken ConfigBody", Input{ConfigBody: "mode"}, "", []string{"runtime options (ConfigBody): line 1"}},
		{"relative directory", Input{}, `data-dir = "var"`, []string{"data-dir", "not an absolute path"}},
		{"list for a scalar", Input{}, `mode = ["auto", "off"]`, []string{"mode", "2 values where one is expected"}},
		{"table for a scalar", Input{}, `mode = { a = 1 }`, []string{"mode", "neither a text"}},
		{"bad address", Input{}, `metrics-address = "localhost"`, []string{"metrics-address", "host:port"}},
		{"bad size", Input{}, `min-free-disk = "1G"`, []string{"min-free-disk", "GiB"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.file != "" {
				tc.in.File = write(t, tc.file)
			}
			_, err := Load(tc.in)
			if err == nil {
				t.Fatal("no error")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("error %q doesn't say %q", err, w)
				}
			}
		})
	}
}

func TestAllErrorsAreTold(t *testing.T) {
	_, err := Load(Input{File: write(t, `mode = "x"`), Annotations: annotated("ports", "0", "on-stop", "x")})
	for _, w := range []string{"mode", "ports", "on-stop"} {
		if err == nil || !strings.Contains(err.Error(), w) {
			t.Errorf("error %v doesn't tell of %s", err, w)
		}
	}
	var e *Error
	if !errors.As(err, &e) {
		t.Errorf("%v holds no *Error", err)
	}
}

func TestAnnotationsOnlyTighten(t *testing.T) {
	for _, tc := range []struct {
		node, key, value string
		ok               bool
	}{
		{`mode = "auto"`, "mode", "off", true},
		{`mode = "auto"`, "mode", "manual", true},
		{`mode = "observe"`, "mode", "auto", false},
		{`mode = "observe"`, "mode", "manual", true},
		{`mode = "off"`, "mode", "observe", false},
		{`min-awake = "10s"`, "min-awake", "20s", true},
		{`min-awake = "10s"`, "min-awake", "9s", false},
		{`wake-timeout = "10s"`, "wake-timeout", "10s", true},
		{`wake-timeout = "10s"`, "wake-timeout", "11s", false},
		{`exec-idle-timeout = "10s"`, "exec-idle-timeout", "0", false},
		{`exec-idle-timeout = "10s"`, "exec-idle-timeout", "11s", false},
		{`exec-idle-timeout = "0s"`, "exec-idle-timeout", "1h", true},
		{`hold-timeout = "10s"`, "hold-timeout", "9s", true},
		{`hold-timeout = "10s"`, "hold-timeout", "11s", false},
		{`max-backlog = 100`, "max-backlog", "99", true},
		{`max-backlog = 100`, "max-backlog", "101", false},
		{`max-held-bytes = "1MiB"`, "max-held-bytes", "1KiB", true},
		{`max-held-bytes = "1MiB"`, "max-held-bytes", "2MiB", false},
		{`max-connections = 100`, "max-connections", "100", true},
		{`max-connections = 100`, "max-connections", "101", false},
		{`idle-timeout = "10s"`, "idle-timeout", "1s", true},
		{`idle-timeout = "10s"`, "idle-timeout", "1h", true},
	} {
		t.Run(tc.node+" "+tc.value, func(t *testing.T) {
			_, err := Load(Input{File: write(t, tc.node), Annotations: annotated(tc.key, tc.value)})
			if (err == nil) != tc.ok {
				t.Fatalf("error %v, want ok = %t", err, tc.ok)
			}
			if err != nil && (!strings.Contains(err.Error(), "beyond the node's") || !strings.Contains(err.Error(), "set by: file")) {
				t.Errorf("error %q doesn't say whose limit it is", err)
			}
		})
	}
}

func TestFilesThatAreMissing(t *testing.T) {
	if _, err := Load(Input{File: filepath.Join(t.TempDir(), "none.toml")}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a named file that is missing: %v", err)
	}
	if _, err := Load(Input{}); err != nil {
		t.Errorf("no input at all: %v", err)
	}
}

func TestEveryDesignedKeyIsKnown(t *testing.T) {
	for name := range strings.FieldsSeq(`mode idle-timeout min-awake ports ignore identity restore on-restore-failure on-stop
		keep-snapshots delete-after wake-timeout probes probe-exec exec-idle-timeout hook-before-sleep hook-after-wake template`) {
		k, ok := lookup(name)
		if !ok {
			t.Errorf("%s is neither supported nor refused by name", name)
			continue
		}
		if k.Scope != ScopeWorkload {
			t.Errorf("%s can't be an annotation", name)
		}
		if _, err := Load(Input{Annotations: annotated(name, k.Default)}); err != nil && k.Default != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTemplate(t *testing.T) {
	for text, want := range map[string]struct {
		identity string
		sequence uint64
		ok       bool
	}{
		"auto": {}, "never": {}, "": {},
		"db":   {"db", 0, true},
		"db@3": {"db", 3, true},
	} {
		identity, sequence, ok := RestoreWhat(text).Template()
		if identity != want.identity || sequence != want.sequence || ok != want.ok {
			t.Errorf("%q: %q %d %t", text, identity, sequence, ok)
		}
	}
}
