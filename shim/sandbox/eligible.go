package sandbox

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/hibernate-runtime/hibernate/network"
	"github.com/hibernate-runtime/hibernate/runsc"
	"github.com/hibernate-runtime/hibernate/snapshot"
)

// ineligibleError says that this node can't restore a snapshot which another one might. A container that is started is not started afresh
// for that.
type ineligibleError struct{ what, theirs, ours string }

func (e *ineligibleError) Error() string {
	return fmt.Sprintf("this node can't restore it: %s was %s when it was put to sleep, and here it is %s; start it on a node like the one before, or with "+
		"restore = never to begin afresh", e.what, e.theirs, e.ours)
}

// ability is what a snapshot needs to be restored, or what a node offers. Values that are not known are empty.
type ability struct {
	architecture, platform string
	features               []string // of the CPU
	cacheLine, pageSize    int      // bytes
	families               []string // of IP
	inside                 []string // addresses that the sandbox knows
}

// refuses compares what a snapshot needs with what the node offers.
func (has ability) refuses(needs ability) error {
	text := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n) + " bytes"
	}
	for _, c := range []struct{ what, theirs, ours string }{
		{"the architecture", needs.architecture, has.architecture},
		{"gVisor's platform", needs.platform, has.platform},
		{"the CPU's cache line", text(needs.cacheLine), text(has.cacheLine)},
		{"the page size", text(needs.pageSize), text(has.pageSize)},
	} {
		if c.theirs != "" && c.ours != "" && c.theirs != c.ours {
			return &ineligibleError{c.what, c.theirs, c.ours}
		}
	}
	if lacking := without(needs.features, has.features); len(lacking) > 0 && len(has.features) > 0 {
		return &ineligibleError{"the CPU", "one with " + strings.Join(lacking, " "), "one without"}
	}
	if len(without(needs.families, has.families)) > 0 {
		return &ineligibleError{"the pod's network", strings.Join(needs.families, " and "), cmp.Or(strings.Join(has.families, " and "), "none")}
	}
	if lacking := without(needs.inside, has.inside); len(lacking) > 0 { // the link was made for what slept here: Start makes it for what is restored
		return &ineligibleError{"its address", strings.Join(needs.inside, " "), strings.Join(has.inside, " ") + " in this container: delete it, and start another"}
	}
	return nil
}

// without is what of list others doesn't have.
func without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// needsOf is what a manifest asks for.
func needsOf(m snapshot.Manifest) ability {
	a := ability{
		architecture: m.Host.Architecture, platform: m.Runtime.Platform, features: m.Runtime.CPUFeatures, cacheLine: m.Runtime.CacheLine,
		pageSize: m.Runtime.PageSize,
	}
	var then network.Attachment
	if json.Unmarshal(m.Attachment, &then) == nil {
		a.families, a.inside = familiesOf(&then), insideOf(&then)
	}
	return a
}

func (w *Workload) offers(known *facts) ability {
	return ability{
		architecture: runtime.GOARCH, platform: w.config.Platform, features: known.features, cacheLine: cacheLine(), pageSize: os.Getpagesize(),
		families: familiesOf(w.attachment), inside: insideOf(w.attachment),
	}
}

func familiesOf(a *network.Attachment) (list []string) {
	if a == nil {
		return nil
	}
	for _, p := range a.Addresses {
		name := "IPv6"
		if p.Addr().Is4() {
			name = "IPv4"
		}
		if !slices.Contains(list, name) {
			list = append(list, name)
		}
	}
	slices.Sort(list)
	return list
}

// insideOf are the addresses that a sandbox knows.
func insideOf(a *network.Attachment) (list []string) {
	if a == nil {
		return nil
	}
	for _, p := range a.Addresses {
		in, translated := a.Inside[p.Addr()]
		if !translated {
			in = p.Addr()
		}
		list = append(list, in.String())
	}
	slices.Sort(list)
	return list
}

// cacheLine is the CPU's, in bytes; 0 where the kernel doesn't tell.
func cacheLine() int {
	n, _ := strconv.Atoi(firstLine("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size"))
	return n
}

// eligible refuses a snapshot that this node or this container must not restore.
func (w *Workload) eligible(t *transition, s *snapshot.Snapshot) error {
	return t.step("choose", func(ctx context.Context) error { return w.able(ctx, t, s) })
}

func (w *Workload) able(ctx context.Context, t *transition, s *snapshot.Snapshot) error {
	m := s.Manifest()
	known, err := w.known(ctx)
	if err != nil {
		return err
	}
	if m.Runtime.Version != known.version {
		return fmt.Errorf("snapshot %d was made by runsc %s, this is %s: %w", m.Sequence, m.Runtime.Version, known.version, runsc.ErrVersion)
	}
	if w.identity == "" { // nobody else's, and its specification was compared at Create
		return nil
	}
	if err := w.sameContainer(m); err != nil {
		return err
	}
	if err := w.offers(known).refuses(needsOf(m)); err != nil {
		return err
	}
	return w.roomFor(t, s.Size())
}

// sameContainer compares what the container is with what it was.
func (w *Workload) sameContainer(m snapshot.Manifest) error {
	digest, err := snapshot.SpecDigest(w.spec)
	if err != nil {
		return err
	}
	if digest != m.SpecDigest {
		return fmt.Errorf("the container's specification changed: %v: %w", w.changedFields(m), runsc.ErrSpec)
	}
	if len(m.Containers) == 1 {
		if then := m.Containers[0].Image; then != "" && w.image != "" && then != w.image {
			return fmt.Errorf("the container's image changed: it was %s, and is %s: %w", then, w.image, runsc.ErrSpec)
		}
	}
	return nil
}

// roomFor refuses to start what the node has no memory for. A wake of what is here already is the daemon's to admit.
func (w *Workload) roomFor(t *transition, size uint64) error {
	if t.record.GetReason() != byStart {
		return nil
	}
	data, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return nil
	}
	_, available := meminfo(data)
	if available <<= 10; available != 0 && available < size+w.config.MinFreeMemory {
		return &ineligibleError{"its memory", fmt.Sprintf("%d MiB", size>>20), fmt.Sprintf("%d MiB that are available, of which %d must stay free (min-free-memory)",
			available>>20, w.config.MinFreeMemory>>20)}
	}
	return nil
}
