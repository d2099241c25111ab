package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/integration/harness"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
)

func (r *raw) rootfs() string { return filepath.Join(r.dir, "rootfs") }

// makeBundle copies the specification that runsc got from the shim, with places of its own, and takes the shim's flags.
func (r *raw) makeBundle(ctx context.Context, o *ours) error {
	for _, dir := range []string{r.bundle(), r.rootfs(), filepath.Join(r.dir, "root"), r.image()} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	var spec specs.Spec
	if err := readJSON(filepath.Join(o.bundle, "hibernate/sandbox/config.json"), &spec); err != nil {
		return err
	}
	var state struct {
		Runsc string   `json:"runsc"`
		Flags []string `json:"runsc_flags"`
	}
	if err := readJSON(filepath.Join(o.bundle, "hibernate/state.json"), &state); err != nil {
		return err
	}
	if err := r.makeGroup(&spec); err != nil {
		return err
	}
	spec.Root.Path = r.rootfs()
	for i, n := range spec.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace {
			spec.Linux.Namespaces[i].Path = "/run/netns/" + r.inner()
		}
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(r.bundle(), "config.json"), data, 0o600); err != nil {
		return err
	}
	if _, err := r.world.Ctr(ctx, "images", "mount", "--rw", harness.Reference(o.image), r.rootfs()); err != nil {
		return err
	}
	r.runsc = &runsc.Client{
		Path: state.Runsc, Root: filepath.Join(r.dir, "root"), Flags: state.Flags, LogDir: r.dir,
		Runner: runner{r.world, r.thread},
	}
	return nil
}

// makeGroup makes the control group beforehand, as the shim does: runsc then has none to make and to remove.
func (r *raw) makeGroup(spec *specs.Spec) (err error) {
	spec.Linux.CgroupsPath = filepath.Join("/", r.world.Name, r.id)
	r.group, err = cgroup.New(spec.Linux.CgroupsPath, spec.Linux.Resources)
	return err
}

func (r *raw) unmount(ctx context.Context) error {
	_, err := r.world.Ctr(ctx, "images", "unmount", "--rm", r.rootfs())
	return err
}

func readJSON(path string, v any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}
