package config

import (
	"fmt"
	"strings"
)

//go:generate go test -run TestDocument -update .

// Document returns docs/CONFIGURATION.md.
func Document() string {
	var b strings.Builder
	b.WriteString(documentHead)
	for _, section := range []struct {
		scope      Scope
		title, doc string
	}{
		{ScopeWorkload, "Workload settings", "May stand everywhere: at the top of the file, in match rules, in runtime " +
			"options and in annotations (`" + AnnotationPrefix + "<key>`)."},
		{ScopeRuntime, "Runtime settings", "For the administrator: at the top of the file, in match rules and in " +
			"runtime options. An annotation that names one is an error."},
		{ScopeNode, "Node settings", "One value for the node: at the top of the file or in runtime options. " +
			"`hibernated` reads only the file."},
	} {
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", section.title, section.doc)
		writeKeys(&b, section.scope)
		if section.scope == ScopeRuntime {
			writeFlags(&b)
		}
	}
	return b.String()
}

func writeKeys(b *strings.Builder, scope Scope) {
	b.WriteString("| key | default | values | meaning |\n|---|---|---|---|\n")
	for _, k := range Keys() {
		if k.Scope != scope {
			continue
		}
		doc, def := k.Doc, "`"+k.Default+"`"
		if k.Default == "" {
			def = "empty"
		}
		if k.Tighten != "" {
			doc += " *Annotations: " + k.Tighten + ".*"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", k.Name, def, k.Kind, doc)
	}
	b.WriteString("\n")
}

const documentHead = `# Configuration

<!-- Made from the table in internal/config by "go generate ./internal/config". Change that, not this. -->

Everything has a default; a file is not needed. Where one is, it is ` + "`" + DefaultFile + "`" + `, in TOML, read by the shim at
each container's creation and by ` + "`hibernated`" + ` at its start.

Values are merged key by key; a later layer wins:

1. the defaults below,
2. the top of the file,
3. the file's match rules that fit the workload, in their order,
4. the runtime options that containerd hands over: the file that ` + "`ConfigPath`" + ` names, then the text in ` + "`ConfigBody`" + `
   (` + "`ctr run --runtime-config-path`" + `; for CRI, the ` + "`options`" + ` table of the runtime),
5. annotations of the container.

An unknown key, a value out of range or a key in the wrong place is an error that stops the container's creation and names
the key, where it stands and what is allowed. ` + "`hibernatectl inspect`" + ` shows each effective value and the layer that set it.
An annotation comes from whoever may start a container: where a setting protects the node, it can only make the node's
value stricter. CRI hands annotations to the runtime only where the runtime's ` + "`pod_annotations`" + ` and
` + "`container_annotations`" + ` list them.

A match rule is a ` + "`[[match]]`" + ` table. It has one or more selectors, all of which must fit (` + "`*`" + ` stands for any text, slashes
included), and settings:

` + "```toml" + `
idle-timeout = "10m"

[[match]]
namespace = "k8s.io"                      # containerd's namespace
image = "docker.io/library/redis:*"
labels = { tier = "cache" }
idle-timeout = "1h"
ports = [6379]
` + "```" + `

Durations have a unit (` + "`90s`, `5m`, `1h30m`" + `). In an annotation a list is written with commas.

`
