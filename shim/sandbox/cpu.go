package sandbox

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/hibernate-runtime/hibernate/snapshot/eligible"
)

// A sandbox sees the features of the CPU that it was given when its workload started afresh, wherever it is restored later: a program asks
// for them once. So what a snapshot needs of a node is what it was given, not what the node had that made it.

// featuresAnnotation names the features that a sandbox sees, with commas between them (gVisor's runsc/boot/loader.go).
const featuresAnnotation = "dev.gvisor.internal.cpufeatures"

// mask is what a workload that starts afresh may see of the CPU; nil: all.
func (w *Workload) mask() []string {
	if w.config.CPUFeatures != nil {
		return w.config.CPUFeatures
	}
	text, ok := w.spec.Annotations[featuresAnnotation]
	if !ok {
		return nil
	}
	return slices.DeleteFunc(strings.Split(text, ","), func(s string) bool { return s == "" })
}

// checkFeatures refuses a node that lacks what its pool is said to have.
func (w *Workload) checkFeatures(known *facts) error {
	if lacking := eligible.Without(w.config.CPUFeatures, known.features); len(lacking) > 0 {
		return fmt.Errorf("cpu-features has %s, which this node's CPU lacks, or runsc doesn't know (see %s cpu-features): take them out on all nodes of the pool, "+
			"or the node out of the pool", strings.Join(lacking, ", "), w.runsc.Binary())
	}
	return nil
}

// masked is the specification with what the sandbox may see of the CPU. It is the node's business, and so no part of the workload's own.
func (w *Workload) masked() *specs.Spec {
	if w.config.CPUFeatures == nil {
		return w.spec
	}
	s := *w.spec
	if s.Annotations = maps.Clone(s.Annotations); s.Annotations == nil {
		s.Annotations = make(map[string]string)
	}
	s.Annotations[featuresAnnotation] = strings.Join(w.config.CPUFeatures, ",")
	return &s
}

// give notes what a sandbox that starts, or is restored, sees of the CPU.
func (w *Workload) give(features []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.given = features
}

// fresh is what a workload is given that starts afresh here.
func (w *Workload) fresh(known *facts) []string {
	mask := w.mask()
	if mask == nil {
		return known.features
	}
	return slices.DeleteFunc(slices.Clone(known.features), func(f string) bool { return !slices.Contains(mask, f) })
}
