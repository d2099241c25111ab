package snapshot

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// SpecDigest returns "sha256:…" over everything in spec that decides whether
// a snapshot of the one container may wake as the other. Two specs with the
// same digest differ at most in what gVisor lets differ at restore: the path
// of the root, sources of mounts, annotations outside gVisor's, hostname,
// domainname, hooks, cgroup path, resources, paths of namespaces, and the
// order of what is a set. The environment counts, though gVisor would let it
// differ: the restored processes keep the old one.
func SpecDigest(spec *specs.Spec) (string, error) {
	data, err := CanonicalSpec(spec)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// SpecsDigest is one digest over the containers of a workload, in order.
func SpecsDigest(digests ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(digests, "\n")))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// CanonicalSpec is the JSON that SpecDigest hashes: keys sorted, no spaces,
// nothing empty, sets sorted. It holds secrets.
func CanonicalSpec(spec *specs.Spec) ([]byte, error) {
	tree, err := relevant(spec)
	if err != nil {
		return nil, err
	}
	return compactJSON(tree)
}

type object = map[string]any

// relevant returns the spec as a tree, without what may differ.
func relevant(spec *specs.Spec) (object, error) {
	tree, err := toTree(spec)
	if err != nil {
		return nil, fmt.Errorf("spec: %w", err)
	}
	for _, key := range []string{"hostname", "domainname", "hooks"} {
		delete(tree, key)
	}
	delete(child(tree, "root"), "path")
	for _, m := range children(tree, "mounts") {
		delete(m, "source")
	}
	annotations := child(tree, "annotations")
	for key := range annotations {
		if !annotationCounts(key) {
			delete(annotations, key)
		}
	}
	if process := child(tree, "process"); process != nil {
		relevantProcess(process, spec.Hostname)
	}
	if linux := child(tree, "linux"); linux != nil {
		relevantLinux(linux)
	}
	prune(tree)
	return tree, nil
}

func toTree(spec *specs.Spec) (object, error) {
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	dec := json.NewDecoder(strings.NewReader(string(data)))
	dec.UseNumber() // Some are 64 bits wide.
	tree := object{}
	return tree, dec.Decode(&tree)
}

func relevantProcess(p object, hostname string) {
	if args, _ := p["args"].([]any); len(args) > 0 {
		if name, ok := args[0].(string); ok {
			args[0] = filepath.Base(name)
		}
	}
	p["env"] = environment(p["env"], hostname)
	sortSet(p, "rlimits")
	caps := child(p, "capabilities")
	for set := range caps {
		sortSet(caps, set)
	}
}

// environment makes a map of NAME=value, where the last wins as for a
// program. HOSTNAME is left out where it only repeats the hostname, which
// may differ.
func environment(env any, hostname string) object {
	list, _ := env.([]any)
	out := object{}
	for _, e := range list {
		s, _ := e.(string)
		name, value, _ := strings.Cut(s, "=")
		out[name] = value
	}
	if hostname != "" && out["HOSTNAME"] == hostname {
		delete(out, "HOSTNAME")
	}
	return out
}

func relevantLinux(l object) {
	delete(l, "cgroupsPath")
	delete(l, "resources")
	for _, ns := range children(l, "namespaces") {
		delete(ns, "path")
	}
	var devices []any
	for _, d := range children(l, "devices") {
		devices = append(devices, object{"path": d["path"], "type": d["type"]})
	}
	l["devices"] = devices
	for _, set := range []string{"namespaces", "devices", "uidMappings", "gidMappings"} {
		sortSet(l, set)
	}
}

// annotationCounts follows gVisor's runsc/specutils: only its own annotations
// are compared at restore, without those that are internal, rename, or point
// to another source of a mount.
func annotationCounts(key string) bool {
	rest, ok := strings.CutPrefix(key, "dev.gvisor.")
	if !ok || strings.HasPrefix(rest, "internal.") || strings.HasPrefix(rest, "container-name-remap.") {
		return false
	}
	if strings.HasPrefix(rest, "spec.mount.") && strings.HasSuffix(rest, ".source") {
		return false
	}
	if flag, ok := strings.CutPrefix(rest, "flag."); ok {
		return !slices.Contains(logFlags, flag)
	}
	return true
}

// logFlags are runsc flags that an annotation may change between checkpoint
// and restore.
var logFlags = []string{
	"debug", "debug-log", "debug-command", "debug-log-format",
	"strace", "strace-syscalls", "strace-log-size", "log-packets",
}

func child(o object, key string) object {
	c, _ := o[key].(object)
	return c
}

func children(o object, key string) []object {
	list, _ := o[key].([]any)
	var out []object
	for _, e := range list {
		if c, ok := e.(object); ok {
			out = append(out, c)
		}
	}
	return out
}

func sortSet(o object, key string) {
	list, _ := o[key].([]any)
	slices.SortFunc(list, func(a, b any) int {
		ja, _ := compactJSON(a) // Both came out of JSON.
		jb, _ := compactJSON(b)
		return strings.Compare(string(ja), string(jb))
	})
}

// prune removes what is empty below o, so that absent, null and empty are the
// same.
func prune(o object) {
	for key, value := range o {
		switch v := value.(type) {
		case nil:
			delete(o, key)
		case []any:
			for _, e := range v {
				if c, ok := e.(object); ok {
					prune(c)
				}
			}
			if len(v) == 0 {
				delete(o, key)
			}
		case object:
			if prune(v); len(v) == 0 {
				delete(o, key)
			}
		}
	}
}
