// Package eligible says whether a node can restore a snapshot, before anything of it is fetched. It is pure: who asks says what there is, and
// what is needed. The shim asks for the container that it restores, the daemon for one that is to come.
//
// An *ability* is what a snapshot needs to be restored, or what a node offers. What isn't known refuses nothing.
//
//	needs := eligible.NeedsOf(manifest)
//	if err := here.Refuses(needs); err != nil { … } // *eligible.Error
package eligible

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/hibernate-runtime/hibernate/snapshot"
)

// Ability is what a snapshot needs, or what a node offers. Values that are not known are empty.
type Ability struct {
	Architecture, Platform string
	Features               []string // of the CPU
	CacheLine, PageSize    int      // bytes
	Runscs                 []Runsc  // of a node: all that it has; of a snapshot: the one that made it
	Families               []string // of IP: IPv4, IPv6
	Inside                 []string // addresses that the sandbox knows
}

// Runsc is one runsc: no other one restores what it has saved.
type Runsc struct {
	Version string `json:"version"`
	SHA256  string `json:"sha256,omitempty"` // of the binary, hex; "": not known
}

// Is says whether r may be o.
func (r Runsc) Is(o Runsc) bool {
	return r.Version == o.Version && (r.SHA256 == "" || o.SHA256 == "" || r.SHA256 == o.SHA256)
}

func (r Runsc) String() string {
	if r.SHA256 == "" {
		return r.Version
	}
	return r.Version + " (sha256 " + r.SHA256 + ")"
}

// Error says that this node can't restore a snapshot which another one might.
type Error struct{ What, Theirs, Ours string }

func (e *Error) Error() string {
	return fmt.Sprintf("this node can't restore it: %s was %s when it was put to sleep, and here it is %s; start it on a node like the one before, or with "+
		"restore = never to begin afresh", e.What, e.Theirs, e.Ours)
}

// Refuses compares what a snapshot needs with what a node offers. Errors: *Error.
func (has Ability) Refuses(needs Ability) error {
	text := func(n int) string {
		if n == 0 {
			return ""
		}
		return strconv.Itoa(n) + " bytes"
	}
	for _, c := range []struct{ what, theirs, ours string }{
		{"the architecture", needs.Architecture, has.Architecture},
		{"gVisor's platform", needs.Platform, has.Platform},
		{"the CPU's cache line", text(needs.CacheLine), text(has.CacheLine)},
		{"the page size", text(needs.PageSize), text(has.PageSize)},
	} {
		if c.theirs != "" && c.ours != "" && c.theirs != c.ours {
			return &Error{c.what, c.theirs, c.ours}
		}
	}
	if lacking := Without(needs.Features, has.Features); len(lacking) > 0 && len(has.Features) > 0 {
		return &Error{"the CPU", "one with " + strings.Join(lacking, " "), "one without"}
	}
	for _, r := range needs.Runscs {
		if len(has.Runscs) > 0 && !slices.ContainsFunc(has.Runscs, r.Is) {
			return &Error{"runsc", r.String(), list(has.Runscs)}
		}
	}
	if len(Without(needs.Families, has.Families)) > 0 {
		return &Error{"the pod's network", strings.Join(needs.Families, " and "), cmp.Or(strings.Join(has.Families, " and "), "none")}
	}
	if lacking := Without(needs.Inside, has.Inside); len(lacking) > 0 { // the link was made for what slept here: Start makes it for what is restored
		return &Error{"its address", strings.Join(needs.Inside, " "), strings.Join(has.Inside, " ") + " in this container: delete it, and start another"}
	}
	return nil
}

func list(all []Runsc) string {
	var text []string
	for _, r := range all {
		text = append(text, r.String())
	}
	return strings.Join(text, ", ")
}

// Without is what of list others doesn't have.
func Without(list, others []string) []string {
	return slices.DeleteFunc(slices.Clone(list), func(s string) bool { return slices.Contains(others, s) })
}

// NeedsOf is what a manifest asks for, except of the network, whose form is package network's: Families and Inside are the caller's to add.
func NeedsOf(m snapshot.Manifest) Ability {
	a := Ability{
		Architecture: m.Host.Architecture, Platform: m.Runtime.Platform, Features: m.Runtime.CPUFeatures, CacheLine: m.Runtime.CacheLine,
		PageSize: m.Runtime.PageSize,
	}
	if m.Runtime.Version != "" {
		a.Runscs = []Runsc{RunscOf(m)}
	}
	return a
}

// RunscOf is the one that made a snapshot.
func RunscOf(m snapshot.Manifest) Runsc { return Runsc{m.Runtime.Version, m.Runtime.SHA256} }

// Here is what this machine offers by itself: all but its runscs, their platform, the features of its CPU as runsc tells them, and a network.
func Here() Ability {
	return Ability{Architecture: runtime.GOARCH, CacheLine: CacheLine(), PageSize: os.Getpagesize()}
}

// CacheLine is the CPU's, in bytes; 0 where the kernel doesn't tell.
func CacheLine() int {
	data, err := os.ReadFile(filepath.Clean("/sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size"))
	if err != nil {
		return 0
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return n
}
