package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/volume"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Files of *outside mounts*, directories and files of the host's that are seen inside, are in no snapshot, while memory knows of them: what a
// database has cached, where its log ends. So they are written to the disk and looked at while the sandbox is paused, and looked at again before
// memory comes back. One that goes on where it has slept finds what has changed told. A snapshot that others have outrun, an older one or one
// of another node or container, is not restored over what can be written to, unless allow-stale-volumes says so.

const (
	syncWithin        = 10 * time.Second // for a source's file system to be written to the disk
	lookOutsideWithin = 2 * time.Second  // at all sources
)

// engineFiles are outside mounts that engines make anew for each container.
var engineFiles = []string{"/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/dev/termination-log"}

// outsideMount is one of the container's.
type outsideMount struct {
	destination, source string
	readOnly            bool
}

// mountHint begins gVisor's annotations about a mount.
const mountHint = "dev.gvisor.spec.mount."

// outsideMounts are those of a specification whose files are not in the checkpoint.
func outsideMounts(spec *specs.Spec) (all []outsideMount) {
	inside := map[string]bool{} // sources that gVisor makes a tmpfs of
	for key, value := range spec.Annotations {
		if name, ok := strings.CutPrefix(key, mountHint); ok {
			if hint, ok := strings.CutSuffix(name, ".type"); ok && value == "tmpfs" {
				inside[spec.Annotations[mountHint+hint+".source"]] = true
			}
		}
	}
	for _, m := range spec.Mounts {
		bind := m.Type == "bind" || slices.Contains(m.Options, "bind") || slices.Contains(m.Options, "rbind")
		if !bind || inside[m.Source] || slices.Contains(engineFiles, m.Destination) {
			continue
		}
		ro := slices.Contains(m.Options, "ro") || slices.Contains(m.Options, "rro")
		all = append(all, outsideMount{destination: m.Destination, source: m.Source, readOnly: ro})
	}
	return all
}

// keepVolumes writes what the paused sandbox has written outside to the disk, and looks at it: memory that is kept must find it again after a loss
// of power, too. It comes after the checkpoint, in which gVisor may still write.
// What it returns is by the container's name, the root's being "".
func (w *Workload) keepVolumes(ctx context.Context) (map[string][]snapshot.Volume, error) {
	all := map[string][]snapshot.Volume{}
	synced := map[string]bool{}
	for _, of := range w.mountsOutside() {
		for _, m := range of.mounts {
			if m.readOnly || synced[m.source] {
				continue
			}
			synced[m.source] = true
			if err := w.syncVolume(ctx, m); err != nil {
				return nil, fmt.Errorf("the mount %s: its files could not be written to the disk: %w", of.name(m), err)
			}
		}
	}
	for _, of := range w.mountsOutside() {
		list, err := lookAtVolumes(ctx, of.mounts)
		if err != nil {
			return nil, err
		}
		all[of.container] = list
	}
	return all, nil
}

// containerMounts are one container's outside mounts.
type containerMounts struct {
	container string // the member's name; "": the root
	mounts    []outsideMount
}

// name is how a mount is told of.
func (c containerMounts) name(m outsideMount) string {
	if c.container == "" {
		return m.destination
	}
	return m.destination + " of " + c.container
}

// mountsOutside are those of all that is in the sandbox, the containers without any left out.
func (w *Workload) mountsOutside() (all []containerMounts) {
	if list := outsideMounts(w.spec); len(list) > 0 {
		all = append(all, containerMounts{"", list})
	}
	for _, c := range w.inside() {
		if list := outsideMounts(c.member.spec); len(list) > 0 {
			all = append(all, containerMounts{c.member.name, list})
		}
	}
	return all
}

// lookAtVolumes is what there is in mounts now.
func lookAtVolumes(ctx context.Context, mounts []outsideMount) (all []snapshot.Volume, err error) {
	looking, cancel := context.WithTimeout(ctx, lookOutsideWithin)
	defer cancel()
	for _, m := range mounts {
		p, err := volume.Look(looking, m.source, volume.Most)
		if err != nil {
			return nil, fmt.Errorf("the mount %s: its files can't be looked at: %w", m.destination, err)
		}
		all = append(all, snapshot.Volume{Destination: m.destination, Source: m.source, ReadOnly: m.readOnly, Print: p})
	}
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return all, nil
}

// syncVolume writes one source's file system to the disk. One of before that the kernel still works on is waited for first.
func (w *Workload) syncVolume(ctx context.Context, m outsideMount) error {
	ctx, cancel := context.WithTimeoutCause(ctx, syncWithin, fmt.Errorf("it takes longer than %v: the disk is slow, or a server does not answer", syncWithin))
	defer cancel()
	w.mu.Lock()
	earlier := w.syncing[m.source]
	w.mu.Unlock()
	if earlier != nil {
		select {
		case <-earlier:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	done, err := volume.Sync(ctx, m.source)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.syncing == nil {
		w.syncing = make(map[string]<-chan struct{})
	}
	w.syncing[m.source] = done
	return err
}

// staleError says why a snapshot is not restored over a mount.
type staleError struct{ mount, why, todo string }

func (e *staleError) Error() string {
	return fmt.Sprintf("it is not restored over the mount %s: %s; %s", e.mount, e.why, e.todo)
}

const (
	allowStale = "where the program can bear that, hibernatectl wake --allow-stale-volumes does it once, and the annotation " + config.AnnotationPrefix +
		"allow-stale-volumes = true always"
	allowTold = "look at the files; where the program can bear that, hibernatectl wake --allow-stale-volumes does it once, and on-volume-change = tell always"
)

// volumesAllow says whether a snapshot may be restored over the mounts as they are now; older: it isn't the newest of its workload, or another
// one has run since. allowed: it may be over files that have gone on. What is to be told of a restore that may be is in told. Errors: *staleError; a *stopError around it where a person has to
// look, whatever the policy.
func (w *Workload) volumesAllow(ctx context.Context, m snapshot.Manifest, older, allowed bool) (told []string, err error) {
	type place struct{ container, destination string }
	then := map[place]snapshot.Volume{}
	for i, c := range m.Containers {
		name := c.Name
		if i == 0 {
			name = "" // the root's
		}
		for _, v := range c.Volumes {
			then[place{name, v.Destination}] = v
		}
	}
	looking, cancel := context.WithTimeout(ctx, lookOutsideWithin)
	defer cancel()
	type named struct {
		outsideMount
		place
	}
	var all []named
	for _, of := range w.mountsOutside() {
		for _, at := range of.mounts {
			n := named{at, place{of.container, at.destination}}
			n.outsideMount.destination = of.name(at)
			all = append(all, n)
		}
	}
	for _, n := range all {
		at := n.outsideMount
		v, known := then[n.place]
		now, err := volume.Look(looking, at.source, most(v, known))
		if err != nil {
			return told, &stopError{&staleError{at.destination, fmt.Sprintf("its source can't be looked at: %v", err), whenThere(err)}}
		}
		c := compared{outsideMount: at, then: v, known: known, now: now, older: older, elsewhere: w.slept(m, at, v, known)}
		say, err := c.judge(allowed || w.config.AllowStaleVolumes, w.config.OnVolumeChange)
		if err != nil {
			return told, err
		}
		if say != "" {
			told = append(told, say)
		}
	}
	return told, nil
}

// most is how many entries are compared.
func most(v snapshot.Volume, known bool) int {
	if known && v.More {
		return v.Entries
	}
	return volume.Most
}

func whenThere(err error) string {
	if errors.Is(err, fs.ErrNotExist) {
		return "mount or make it as it was; then hibernatectl wake, or start the container again"
	}
	return "when that is mended: hibernatectl wake, or start the container again"
}

// slept says why a snapshot's files may be others than those here; "" where it has slept in this place.
func (w *Workload) slept(m snapshot.Manifest, at outsideMount, v snapshot.Volume, known bool) string {
	w.mu.Lock()
	imported := w.export != nil && w.root().state == lifecycle.Created
	w.mu.Unlock()
	node := w.hostFacts().Node
	switch {
	case m.Origin != nil:
		return "it is a copy of the workload " + nameOf(m.Origin.Identity, m.Origin.ID) + ", which may go on"
	case imported:
		return "it is a checkpoint, which may be of another container or an earlier time"
	case m.Host.Node != "" && m.Host.Node != node:
		return "it was put to sleep on the node " + m.Host.Node + ", and this is " + node
	case w.identity == "" && (m.Namespace != w.opts.Namespace || m.ID != w.opts.ID):
		return "it is of the container " + m.Namespace + "/" + m.ID
	case known && v.Source != at.source:
		return "its source was " + v.Source + ", and is " + at.source
	}
	return ""
}

func nameOf(identity, id string) string {
	if identity != "" {
		return identity
	}
	return id
}

// compared is what is known of one mount.
type compared struct {
	outsideMount
	then      snapshot.Volume
	known     bool // the snapshot tells of the mount
	now       volume.Print
	older     bool
	elsewhere string // why the files may be others; "": they are not
}

// judge says what is to be told, or why not to restore.
func (c compared) judge(allowed bool, change config.VolumePolicy) (told string, err error) {
	changed := c.known && !c.now.Same(c.then.Print)
	switch {
	case c.readOnly && changed:
		return fmt.Sprintf("the read-only mount %s has changed (%s)", c.destination, c.difference()), nil
	case c.readOnly:
		return "", nil
	case c.known && !c.then.Empty() && c.now.Empty() && c.now.FileSystem != c.then.FileSystem:
		return "", &stopError{&staleError{c.destination, fmt.Sprintf("its source %s had %s, and is empty now and on another file system: is something not mounted?",
			c.source, entries(c.then.Print)), "mount it; then hibernatectl wake, or start the container again"}}
	}
	why := c.elsewhere
	if c.older && why == "" {
		why = "it is not the newest, and the files have gone on"
	}
	switch nothing := c.now.Empty() && (!c.known || c.then.Empty()); {
	case why != "" && nothing:
		return "", nil
	case why != "" && allowed:
		return fmt.Sprintf("restored over the mount %s, as it was allowed, though %s", c.destination, why), nil
	case why != "" && c.elsewhere != "":
		return "", &stopError{&staleError{c.destination, why + ", and memory that files have outrun destroys them", allowStale}}
	case why != "":
		return "", &staleError{c.destination, why + ": memory that they have outrun destroys them", allowStale}
	case changed && change == config.VolumeRefuse && !allowed:
		return "", &staleError{c.destination, "its files were changed while it slept (" + c.difference() + "), and on-volume-change is refuse", allowTold}
	case changed:
		return fmt.Sprintf("files of the mount %s were changed while it slept (%s)", c.destination, c.difference()), nil
	}
	return "", nil
}

// difference is as people read it.
func (c compared) difference() string {
	text := entries(c.then.Print) + " then, " + entries(c.now) + " now"
	if c.now.Newest.After(c.then.Newest) {
		text += ", the latest change at " + c.now.Newest.Format(time.RFC3339)
	}
	return text
}

func entries(p volume.Print) string {
	if p.More {
		return fmt.Sprintf("more than %d entries", p.Entries)
	}
	return fmt.Sprintf("%d entries", p.Entries)
}

// lookOutside is a wake's step, beside the boot of the sandbox and before memory comes back.
func (w *Workload) lookOutside(t *transition, m snapshot.Manifest) error {
	if len(w.mountsOutside()) == 0 {
		return nil
	}
	return t.step("volumes", func(ctx context.Context) error {
		told, err := w.volumesAllow(ctx, m, t.older, t.stale)
		for _, text := range told {
			w.opts.Log.Warn("volume", "id", t.record.GetId(), "detail", text)
			t.remark(text)
		}
		return err
	})
}
