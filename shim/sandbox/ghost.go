package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/core/mount"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
)

// A *ghost* is a member that was ended while the pod slept, by SIGKILL or as on-stop says. gVisor restores all of a checkpoint or nothing, so the next wake needs what the
// ghost had, after its engine has removed its container: its image's layers, which others may share and which stay, and something in the place of each mount.

// keepGhost has the root file system of a ghost be independent of the container's snapshot, which its engine may remove from now on. What it had written is in the pod's checkpoint.
func (w *Workload) keepGhost(c *Container) error {
	w.ghosts.Lock() // a boot waits for it
	defer w.ghosts.Unlock()
	w.mu.Lock()
	sleeps := c.member.inside && w.transition == nil && (w.state == lifecycle.Asleep || w.state == lifecycle.Blocked)
	w.mu.Unlock()
	if !sleeps || len(c.member.layers) != 1 || c.member.layers[0].Type != "overlay" {
		return nil
	}
	upper, work := filepath.Join(c.member.dir, "upper"), filepath.Join(c.member.dir, "work")
	if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o700)); err != nil {
		return err
	}
	if err := mount.UnmountRecursive(c.member.rootfs(), unix.MNT_DETACH); err != nil {
		return err
	}
	return mountAll([]*types.Mount{{Type: "overlay", Source: "overlay", Options: ghostOptions(c.member.layers[0].Options, upper, work)}}, c.member.rootfs())
}

// ghostOptions are those of an overlay with another upper directory.
func ghostOptions(options []string, upper, work string) []string {
	kept := slices.DeleteFunc(slices.Clone(options), func(o string) bool {
		return strings.HasPrefix(o, "upperdir=") || strings.HasPrefix(o, "workdir=")
	})
	return append(kept, "upperdir="+upper, "workdir="+work)
}

// isFileSource says of each mount's source whether it is no directory.
func isFileSource(spec *specs.Spec) map[string]bool {
	files := map[string]bool{}
	for _, m := range spec.Mounts {
		if info, err := os.Stat(m.Source); err == nil && isBind(m) {
			files[m.Source] = !info.IsDir()
		}
	}
	return files
}

func isBind(m specs.Mount) bool {
	return m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
}

// mendGhosts puts something in the place of each mount's source that is gone of a container that runs no more.
func (w *Workload) mendGhosts() error {
	w.ghosts.Lock()
	defer w.ghosts.Unlock()
	for _, c := range w.inside() {
		w.mu.Lock()
		ghost := !c.live()
		w.mu.Unlock()
		if !ghost {
			continue
		}
		if err := c.member.mend(); err != nil {
			return fmt.Errorf("container %s, which ended while the pod slept: %w", c.ID, err)
		}
	}
	return nil
}

func (m *member) mend() error {
	changed := false
	spec := *m.spec
	spec.Mounts = slices.Clone(spec.Mounts)
	for i, at := range spec.Mounts {
		if _, err := os.Stat(at.Source); !isBind(at) || err == nil {
			continue
		}
		standIn := filepath.Join(m.dir, fmt.Sprintf("mount-%d", i))
		err := os.MkdirAll(standIn, 0o755)
		if m.files[at.Source] {
			err = errors.Join(os.Remove(standIn), os.WriteFile(standIn, nil, 0o644))
		}
		if err != nil {
			return err
		}
		spec.Mounts[i].Source, changed = standIn, true
	}
	if !changed {
		return nil
	}
	data, err := json.Marshal(&spec)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(m.dir, "config.json"), data, 0o600)
}
