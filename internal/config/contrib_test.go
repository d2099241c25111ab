package config

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"
)

// The example is all comments: it must be right as it is and with every comment removed, and leave no key out.
func TestExampleFile(t *testing.T) {
	path := filepath.Join("..", "..", "contrib", "config.toml")
	if _, err := Load(Input{File: path}); err != nil {
		t.Error(err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	open := regexp.MustCompile(`(?m)^# ([a-z-]+ = |\[\[match)`).ReplaceAllString(string(text), "$1")
	c, err := Load(Input{File: write(t, open)})
	if err != nil {
		t.Fatal(err)
	}
	defaults := Default().Settings()
	for i, s := range c.Settings() {
		if k, _ := lookup(s.Key); k.Single {
			continue
		}
		if s.Source != SourceFile {
			t.Errorf("%s is not in %s", s.Key, path)
		}
		if s.Value != defaults[i].Value {
			t.Errorf("%s is %q in %s, the default is %q", s.Key, s.Value, path, defaults[i].Value)
		}
	}
}

func TestContainerdSnippets(t *testing.T) {
	for name, plugin := range map[string]string{
		"hibernate.toml": "io.containerd.cri.v1.runtime", "hibernate-1.7.toml": "io.containerd.grpc.v1.cri",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "contrib", "containerd", name))
		if err != nil {
			t.Fatal(err)
		}
		var file struct {
			Plugins map[string]struct {
				Containerd struct {
					Runtimes map[string]struct {
						Type string   `toml:"runtime_type"`
						Pod  []string `toml:"pod_annotations"`
						All  []string `toml:"container_annotations"`
					}
				}
			}
		}
		if err := toml.Unmarshal(text, &file); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		r := file.Plugins[plugin].Containerd.Runtimes["hibernate"]
		want := AnnotationPrefix + "*"
		if r.Type != "io.containerd.hibernate.v1" || strings.Join(r.Pod, "") != want || strings.Join(r.All, "") != want {
			t.Errorf("%s: runtime %+v", name, r)
		}
	}
}
