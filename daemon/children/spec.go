package children

import (
	"errors"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/config"
)

// ErrNotOurs: another engine looks after such containers, and makes them itself.
var ErrNotOurs = errors.New("an engine looks after it")

// ErrNetwork: which network a child is to have is not known.
var ErrNetwork = errors.New("its children's network is not known")

// engines have a label of their own on each container that they have made.
var engines = map[string]string{"nerdctl/namespace": "nerdctl", "io.cri-containerd.kind": "Kubernetes", "com.docker.compose.project": "compose"}

// checkEngine refuses what has state with an engine that a copy wouldn't have.
func checkEngine(labels map[string]string) error {
	for label, engine := range engines {
		if _, ok := labels[label]; ok {
			return fmt.Errorf("%w: make its children with %s, with the annotation %sidentity=NAME", ErrNotOurs, engine, config.AnnotationPrefix)
		}
	}
	return nil
}

// network is how the parent got its own.
type network struct {
	cni   bool
	given bool // as a namespace's path
}

func networkOf(spec *specs.Spec, extensions []string) (network, error) {
	if spec.Linux == nil {
		return network{}, fmt.Errorf("%w: its specification is none for Linux", ErrNetwork)
	}
	i := slices.IndexFunc(spec.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Type == specs.NetworkNamespace })
	if i < 0 {
		return network{}, fmt.Errorf("%w: it has the host's", ErrNetwork)
	}
	return network{cni: slices.Contains(extensions, ctrNetwork), given: spec.Linux.Namespaces[i].Path != ""}, nil
}

// ownKeys are annotations of the parent that are not its children's.
var ownKeys = []string{"identity", "restore", "template", "pool"}

// childSpec is the parent's specification as a child's.
func childSpec(parent *specs.Spec, parentID string, c Child) *specs.Spec {
	s := *parent
	s.Annotations = maps.Clone(parent.Annotations)
	if s.Annotations == nil {
		s.Annotations = make(map[string]string)
	}
	for _, k := range ownKeys {
		delete(s.Annotations, config.AnnotationPrefix+k)
	}
	for k, v := range c.Annotations {
		s.Annotations[config.AnnotationPrefix+k] = v
	}
	linux := *parent.Linux
	linux.CgroupsPath = childGroup(linux.CgroupsPath, parentID, c.ID)
	linux.Namespaces = slices.Clone(linux.Namespaces)
	for i, n := range linux.Namespaces {
		if n.Type == specs.NetworkNamespace && c.NetNS != "" {
			linux.Namespaces[i].Path = c.NetNS
		}
	}
	s.Linux = &linux
	return &s
}

// childGroup is a control group beside the parent's: a path, or systemd's slice:prefix:name.
func childGroup(parent, parentID, id string) string {
	if parent == "" {
		return ""
	}
	if parts := strings.Split(parent, ":"); len(parts) == 3 {
		return strings.Join(append(parts[:2], id), ":")
	}
	if dir, base := path.Split(parent); base != parentID {
		return path.Join(dir, base+"-"+id)
	}
	return path.Join(path.Dir(parent), id)
}
