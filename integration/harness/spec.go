package harness

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

// A Bundle is a container that `ctr run --config` starts: its specification is the test's own.
type Bundle struct {
	ID     string
	Config string // path of the specification
	rootfs string
}

// NewBundle writes the specification of a container of an image, as ctr makes it, with what change does to it, and
// mounts the image's files for it. RemoveBundle takes it down.
func (w *World) NewBundle(ctx context.Context, c Container, change func(*specs.Spec)) (b Bundle, err error) {
	if err := w.Import(ctx, c.Image); err != nil {
		return b, err
	}
	b = Bundle{ID: c.ID, Config: filepath.Join(w.Dir, c.ID+".json"), rootfs: filepath.Join(w.Dir, c.ID+"-rootfs")}
	spec, err := w.modelSpec(ctx, c)
	if err != nil {
		return b, err
	}
	spec.Root.Path = b.rootfs
	change(spec)
	data, err := json.Marshal(spec)
	if err != nil {
		return b, err
	}
	if err := errors.Join(os.WriteFile(b.Config, data, 0o644), os.Mkdir(b.rootfs, 0o755)); err != nil {
		return b, err
	}
	_, err = w.Ctr(ctx, "images", "mount", "--rw", Reference(c.Image), b.rootfs)
	return b, err
}

// modelSpec is what ctr would run.
func (w *World) modelSpec(ctx context.Context, c Container) (*specs.Spec, error) {
	model := c.ID + "-model"
	args := append([]string{"containers", "create", "--runtime", Runtime, Reference(c.Image), model}, c.Args...)
	if _, err := w.Ctr(ctx, args...); err != nil {
		return nil, err
	}
	info, err := w.Ctr(ctx, "containers", "info", "--spec", model)
	if err != nil {
		return nil, err
	}
	if _, err := w.Ctr(ctx, "containers", "delete", model); err != nil {
		return nil, err
	}
	spec := new(specs.Spec)
	return spec, json.Unmarshal([]byte(info), spec)
}

// RunBundle starts the bundle's container, detached, with further flags of ctr run.
func (w *World) RunBundle(ctx context.Context, b Bundle, flags ...string) error {
	args := append([]string{"run", "--runtime", Runtime, "--runtime-config-path", w.ConfigFile(), "--detach"}, flags...)
	_, err := w.Ctr(ctx, append(args, "--config", b.Config, b.ID)...)
	return err
}

// RemoveBundle removes what NewBundle made, and the container before where it is still there.
func (w *World) RemoveBundle(ctx context.Context, b Bundle) error {
	if err := w.Remove(ctx, b.ID); err != nil {
		return err
	}
	_, err := w.Ctr(ctx, "images", "unmount", "--rm", b.rootfs)
	return err
}
