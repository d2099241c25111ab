package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// configure writes the configuration files and prepares the two daemons.
func (w *World) configure() error {
	for _, d := range []string{w.RunDir(), w.DataDir(), filepath.Join(w.Dir, "containerd"), filepath.Join(w.Dir, "logs"), w.tmp()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return err
		}
	}
	err := errors.Join(
		os.WriteFile(w.containerdConfig(), []byte(w.containerdTOML()), 0o644),
		os.WriteFile(w.ConfigFile(), []byte(w.hibernateTOML()), 0o644),
		os.WriteFile(w.Path("/etc/cni/net.d/10-world.conflist"), w.conflist(), 0o644),
	)
	w.Containerd = w.program("containerd", []string{"--config", w.containerdConfig()}, w.containerdReady)
	w.Daemon = w.program("hibernated", []string{"--config", w.ConfigFile()}, w.daemonReady)
	return err
}

func (w *World) program(name string, args []string, ready func(context.Context) error) *Program {
	return &Program{
		Name: name, LogFile: filepath.Join(w.Dir, "logs", name+".log"),
		args: args, env: append([]string{"TMPDIR=" + w.tmp()}, w.options.Env...), world: w, ready: ready,
	}
}

// tmp is where the world's programs put what they forget to remove.
func (w *World) tmp() string { return filepath.Join(w.Dir, "tmp") }

func (w *World) containerdConfig() string { return filepath.Join(w.Dir, "containerd.toml") }

// Address is containerd's socket.
func (w *World) Address() string { return filepath.Join(w.Dir, "containerd.sock") }

func (w *World) containerdTOML() string {
	cri := `disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime",
  "io.containerd.podsandbox.controller.v1.podsandbox", "io.containerd.nri.v1.nri",
]
`
	tables := ""
	if w.options.CRI {
		cri, tables = "disabled_plugins = [\"io.containerd.nri.v1.nri\"]\n", w.criTOML()
	}
	return fmt.Sprintf(`version = 3
root = %[1]q
state = %[2]q
%[4]s[grpc]
address = %[3]q
[debug]
level = "info"
%[5]s`, filepath.Join(w.Dir, "containerd"), filepath.Join(w.Dir, "state"), w.Address(), cri, tables)
}

// criTOML has the runtime as contrib/containerd has it, and what a node without a registry, and without the right to lower
// an OOM score, needs besides.
func (w *World) criTOML() string {
	return fmt.Sprintf(`[plugins.'io.containerd.cri.v1.images'.pinned_images]
sandbox = %[1]q
[plugins.'io.containerd.cri.v1.images'.registry]
config_path = %[5]q
[plugins.'io.containerd.cri.v1.runtime']
restrict_oom_score_adj = true
[plugins.'io.containerd.cri.v1.runtime'.cni]
bin_dirs = ["/opt/cni/bin"]
conf_dir = "/etc/cni/net.d"
[plugins.'io.containerd.cri.v1.runtime'.containerd]
default_runtime_name = "hibernate"
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.hibernate]
runtime_type = %[2]q
pod_annotations = [%[4]s]
container_annotations = ["io.containerd.hibernate/*"]
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.hibernate.options]
ConfigPath = %[3]q
`, Reference(cmp.Or(w.options.Pause, "pause")), Runtime, w.ConfigFile(), quoted(append([]string{"io.containerd.hibernate/*"}, w.options.PodAnnotations...)),
		w.registries())
}

// quoted are TOML's words of a list.
func quoted(words []string) string {
	var list []string
	for _, s := range words {
		list = append(list, fmt.Sprintf("%q", s))
	}
	return strings.Join(list, ", ")
}

func (w *World) hibernateTOML() string {
	settings := map[string]string{
		"run-dir":  fmt.Sprintf("%q", w.RunDir()),
		"data-dir": fmt.Sprintf("%q", w.DataDir()),
		"runsc":    fmt.Sprintf("%q", filepath.Join(w.root, ".tools/runsc")),

		"flat-from": `"0"`, // the programs of tests are small
	}
	maps.Copy(settings, w.options.Settings)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&b, "%s = %s\n", k, settings[k])
	}
	return b.String()
}

func (w *World) containerdReady(ctx context.Context) error {
	if err := canConnect(ctx, w.Address()); err != nil {
		return err
	}
	_, err := w.Ctr(ctx, "version")
	return err
}

func (w *World) daemonReady(ctx context.Context) error {
	return canConnect(ctx, filepath.Join(w.RunDir(), "api.sock"))
}

func canConnect(ctx context.Context, socket string) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	return c.Close()
}
