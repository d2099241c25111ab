package config

import (
	"slices"
	"strings"
	"testing"
)

func TestFilters(t *testing.T) {
	for text, want := range map[string]string{
		"9090": "9090", "udp/5353": "udp/5353", "from 10.1.2.3/8": "from 10.0.0.0/8", "tcp/9090 from 10.0.0.5/32": "tcp/9090 from 10.0.0.5",
		"9090, from fd00::/64": "9090, from fd00::/64", "from ::1": "from ::1", "": "",
	} {
		c, err := Load(Input{Annotations: map[string]string{AnnotationPrefix + "ignore": text}})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		i := slices.IndexFunc(c.Settings(), func(s Setting) bool { return s.Key == "ignore" })
		if got := c.Settings()[i].Value; got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"icmp/1", "0", "70000", "from", "from x", "9090 to 10.0.0.1", "9090 from 10.0.0.1 x", "from ::ffff:10.0.0.1", strings.Repeat("1,", 33)} {
		if _, err := Load(Input{Annotations: map[string]string{AnnotationPrefix + "ignore": text}}); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}

func TestIsProbe(t *testing.T) {
	c, err := Load(Input{Annotations: map[string]string{AnnotationPrefix + "probe-exec": "/bin/sh -c curl -f http://localhost*, pg_isready"}})
	if err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]bool{
		"/bin/sh|-c|curl -f http://localhost:8080/health || exit 1": true, "pg_isready": true, "pg_isready|-q": false, "/bin/sh": false, "": false,
	} {
		if got := c.IsProbe(strings.Split(line, "|")); got != want {
			t.Errorf("%s: %v", line, got)
		}
	}
}

func TestProbes(t *testing.T) {
	for text, want := range map[string]string{
		"kubelet": "kubelet", "": "", "8080/health/ready from 10.0.0.5, 5432 from 10.1.0.0/8": "8080/health/ready from 10.0.0.5, 5432 from 10.0.0.0/8",
	} {
		c, err := Load(Input{Annotations: map[string]string{AnnotationPrefix + "probes": text}})
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		i := slices.IndexFunc(c.Settings(), func(s Setting) bool { return s.Key == "probes" })
		if got := c.Settings()[i].Value; got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
	}
	for _, text := range []string{"8080", "8080/health", "/health from 10.0.0.5", "kubelet from 10.0.0.5", "8080 from", "8080 from x"} {
		if _, err := Load(Input{Annotations: map[string]string{AnnotationPrefix + "probes": text}}); err == nil {
			t.Errorf("%q was taken", text)
		}
	}
}
