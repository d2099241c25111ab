package conformance

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	runcoptions "github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Options reach a container by each way that containerd has, and the nearer one wins.
func TestOptions(t *testing.T) {
	n := newNode(t, nil)
	base, err := os.ReadFile(n.config)
	if err != nil {
		t.Fatal(err)
	}
	text := func(timeout string) string { return string(base) + "idle-timeout = \"" + timeout + "\"\n" }
	file := filepath.Join(n.Dir, "other.toml")
	write(t, file, text("11m"))
	write(t, n.Path("/etc/hibernate/config.toml"), text("22m"))
	path := &runtimeoptions.Options{ConfigPath: file}
	body := &runtimeoptions.Options{TypeUrl: "runtimeoptions.v1.Options", ConfigBody: []byte(text("33m"))}
	runc := &runcoptions.Options{BinaryName: "runc"}
	for _, tc := range []struct {
		name            string
		atStart, create proto.Message
		annotation      string
		value, source   string
		told            bool // in the log, that options were ignored
	}{
		{"the default file", nil, nil, "", "22m", "file", false},
		{"a file", nil, path, "", "11m", "options", false},
		{"a text", nil, body, "", "33m", "options", false},
		{"a file, at start", path, nil, "", "11m", "options", false},
		{"a text, at start", body, nil, "", "33m", "options", false},
		{"the task's before the runtime's", path, body, "", "33m", "options", false},
		{"another runtime's", nil, runc, "", "22m", "file", true},
		{"another runtime's, at start", runc, nil, "", "22m", "file", false},
		{"the runtime's where the task has another's", path, runc, "", "11m", "options", true},
		{"an annotation before all", nil, body, "44m", "44m", "annotation", false},
	} {
		check(t, tc.name, func(t *testing.T) {
			o := options{args: sleeper, atStart: tc.atStart}
			if tc.annotation != "" {
				o.annotations = map[string]string{"idle-timeout": tc.annotation}
			}
			c := n.prepare(t, mood{}, o)
			c.connect(c.startShim())
			r := c.createRequest()
			r.Options = packed(t, tc.create)
			if _, err := c.task.Create(c.ctx(), r); err != nil {
				t.Fatal(err)
			}
			if value, source := c.setting("idle-timeout"); value != tc.value || source != tc.source {
				t.Errorf("idle-timeout is %s from %s, want %s from %s", value, source, tc.value, tc.source)
			}
			c.delete("")
			c.shutdown()
			if told := strings.Contains(c.log.text(), "runc.v1.Options"); told != tc.told {
				t.Errorf("ignored options are told: %t\n%s", told, c.log.text())
			}
		})
	}
}

// packed is nil for nil.
func packed(t *testing.T, m proto.Message) *anypb.Any {
	t.Helper()
	if m == nil {
		return nil
	}
	a, err := typeurl.MarshalAnyToProto(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// setting is an effective value, and where it comes from.
func (c *container) setting(key string) (value, source string) {
	c.t.Helper()
	s, err := c.shim.Status(c.ctx(), &shimv1.StatusRequest{})
	if err != nil {
		c.t.Fatalf("Status: %v", err)
	}
	for _, k := range s.GetSettings() {
		if k.GetKey() == key {
			return k.GetValue(), k.GetSource()
		}
	}
	return "", ""
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
