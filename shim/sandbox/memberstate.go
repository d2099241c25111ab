package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/shim/cgroup"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// memberFile is what `delete` finds of a member in its bundle, whose shim is gone.
type memberFile struct {
	Sandbox string `json:"sandbox"` // id of the pod's root
	Root    string `json:"root"`    // the root's bundle
	Dir     string `json:"dir"`     // the member's files outside its bundle
}

// saveMember writes the member's state file: all of it that lives outside the shim.
func (w *Workload) saveMember(c *Container) error {
	s := stateFile{
		Version: stateVersion, Namespace: w.opts.Namespace, ID: c.ID, RunDir: w.config.RunDir,
		Runsc: w.runsc.Binary(), RunscRoot: w.runsc.Root, RunscFlags: w.runsc.Flags, Rootfs: c.member.rootfs(),
		Shim: identify(os.Getpid()), Holder: w.holder.process, Ending: w.memberEnding(c),
		Member: &memberFile{Sandbox: w.opts.ID, Root: w.opts.Bundle, Dir: c.member.dir},
	}
	if c.member.group != nil {
		s.Cgroup = c.member.group.Path()
	}
	if err := writeJSON(filepath.Join(c.member.dir, "state.json"), s); err != nil {
		return err
	}
	return writeJSON(c.member.places.state(), s)
}

// cleanMember is Cleanup of a member: the pod ends with its shim, so its sandbox is ended, too, and the rest of it is left to the root's Cleanup. containerd calls for
// a member's alone, too, where its start has failed: as long as the shim lives, it does what is to be done itself.
func (s stateFile) cleanMember(ctx context.Context, p places, runner runsc.Runner) (warning, err error) {
	if s.Shim.alive() {
		return nil, nil
	}
	if root, e := readState((places{s.Member.Root}).state()); e == nil {
		err = root.Sandbox.kill()
	}
	warning, e := s.removeMember(ctx, p, runner)
	return warning, errors.Join(err, e)
}

// cleanMembers is cleanMember for what is left of all members of a pod.
func (s stateFile) cleanMembers(ctx context.Context, runner runsc.Runner) (warning, err error) {
	left, _ := filepath.Glob(memberDir(s.RunDir, s.Namespace, s.ID, "*"))
	for _, dir := range left {
		member, e := readState(filepath.Join(dir, "state.json"))
		if e != nil || member.Member == nil { // its creation was cut short
			err = errors.Join(err, removeMemberDir(dir))
			continue
		}
		w, e := member.removeMember(ctx, places{}, runner)
		warning, err = errors.Join(warning, w), errors.Join(err, e)
	}
	return warning, err
}

// removeMember removes all that a member has, whose sandbox is gone. p are its places in its bundle, where that is known to be there.
func (s stateFile) removeMember(ctx context.Context, p places, runner runsc.Runner) (warning, err error) {
	err = killCommands(s.RunscRoot, s.ID)
	warning = s.Ending.run(ctx, runner)
	if s.Cgroup != "" {
		group, e := cgroup.Load(s.Cgroup)
		switch {
		case e == nil:
			e = group.Delete()
		case errors.Is(e, cgroup.ErrGone):
			e = nil
		}
		err = errors.Join(err, e)
	}
	err = errors.Join(err, removeMemberTraces(s.RunscRoot, s.ID, s.Member.Sandbox), removeFilestores(s.Rootfs), removeMemberDir(s.Member.Dir))
	if e := os.Remove(p.state()); err == nil && p.bundle != "" && !errors.Is(e, os.ErrNotExist) {
		err = e
	}
	return warning, err
}

// memberManifests describe what is in the sandbox beside the root.
func (w *Workload) memberManifests() (all []snapshot.Container, err error) {
	for _, c := range w.inside() {
		spec, err := json.Marshal(c.member.spec)
		if err != nil {
			return nil, err
		}
		digest, err := snapshot.SpecDigest(c.member.spec)
		if err != nil {
			return nil, err
		}
		all = append(all, snapshot.Container{ID: c.ID, Name: c.member.name, Spec: spec, SpecDigest: digest, Image: c.member.image})
	}
	return all, nil
}

// sameMembers refuses a snapshot of other containers than the pod has: gVisor restores all of them, or nothing.
func (w *Workload) sameMembers(m snapshot.Manifest) error {
	var then, now []string
	for i, c := range m.Containers {
		if i > 0 {
			then = append(then, c.Name)
		}
	}
	for _, c := range w.inside() {
		now = append(now, c.member.name)
	}
	if slices.Equal(then, now) {
		return nil
	}
	return fmt.Errorf("the snapshot is of a pod with the containers %q, and this one has %q: %w", then, now, runsc.ErrSpec)
}
