package children

import (
	"errors"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

func parentSpec() *specs.Spec {
	return &specs.Spec{
		Process: &specs.Process{Args: []string{"/server"}, Env: []string{"A=b"}},
		Annotations: map[string]string{
			"io.containerd.hibernate/identity": "base", "io.containerd.hibernate/template": "true", "io.containerd.hibernate/idle-timeout": "1m",
		},
		Linux: &specs.Linux{CgroupsPath: "/ns/web", Namespaces: []specs.LinuxNamespace{{Type: "pid"}, {Type: "network", Path: "/run/netns/web"}}},
	}
}

// A child's specification is the parent's for a restore, and a container of its own for the node.
func TestChildSpec(t *testing.T) {
	parent := parentSpec()
	child := childSpec(parent, "web", Child{ID: "c1", NetNS: "/run/netns/c1", Annotations: map[string]string{"identity": "kid"}})
	if got := child.Annotations; len(got) != 2 || got["io.containerd.hibernate/identity"] != "kid" || got["io.containerd.hibernate/idle-timeout"] != "1m" {
		t.Errorf("annotations %v", got)
	}
	if child.Linux.CgroupsPath != "/ns/c1" || child.Linux.Namespaces[1].Path != "/run/netns/c1" {
		t.Errorf("%+v", child.Linux)
	}
	if parent.Linux.CgroupsPath != "/ns/web" || parent.Linux.Namespaces[1].Path != "/run/netns/web" || len(parent.Annotations) != 3 {
		t.Errorf("the parent was changed: %+v", parent)
	}
	a, err := snapshot.SpecDigest(parent)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := snapshot.SpecDigest(child); err != nil || a != b {
		t.Errorf("it differs for a restore: %v", err)
	}
	if got := childSpec(parent, "web", Child{ID: "c1"}).Linux.Namespaces[1].Path; got != "/run/netns/web" {
		t.Errorf("no namespace is given, and it is %q", got)
	}
}

func TestChildGroup(t *testing.T) {
	for _, c := range [][2]string{
		{"", ""}, {"/ns/web", "/ns/c1"}, {"/other/thing", "/other/thing-c1"}, {"system.slice:hibernate:web", "system.slice:hibernate:c1"},
	} {
		if got := childGroup(c[0], "web", "c1"); got != c[1] {
			t.Errorf("%q: %q, want %q", c[0], got, c[1])
		}
	}
}

func TestWhoIsRefused(t *testing.T) {
	if err := checkEngine(map[string]string{"nerdctl/namespace": "default"}); !errors.Is(err, ErrNotOurs) {
		t.Error(err)
	}
	if err := checkEngine(map[string]string{"io.containerd.image.config.stop-signal": "SIGTERM"}); err != nil {
		t.Error(err)
	}
	s := parentSpec()
	if n, err := networkOf(s, nil); err != nil || n.cni || !n.given {
		t.Errorf("%+v, %v", n, err)
	}
	if n, err := networkOf(s, []string{ctrNetwork}); err != nil || !n.cni {
		t.Errorf("%+v, %v", n, err)
	}
	s.Linux.Namespaces = s.Linux.Namespaces[:1]
	if _, err := networkOf(s, nil); !errors.Is(err, ErrNetwork) {
		t.Error(err)
	}
}
