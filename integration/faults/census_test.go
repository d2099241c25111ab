package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hibernate-runtime/hibernate/integration/harness"
)

// inventory is all that there is of a lane, as lines that are the same for the same things made anew.
func (a *app) inventory() []string {
	a.Helper()
	census, err := a.w.Census(a.ctx())
	a.must(err)
	lines := census.Since(harness.Census{})
	lines = slices.DeleteFunc(lines, func(l string) bool {
		foreign := strings.HasPrefix(l, "mount: "+os.TempDir()) && !strings.HasPrefix(l, "mount: "+a.w.Dir) // of another test
		return foreign || stub.MatchString(l)
	})
	for i, l := range lines {
		lines[i] = number.ReplaceAllString(l, "$1")
		if f := strings.Fields(lines[i]); len(f) > 1 && f[0] == "process:" {
			lines[i] = strings.Join(f[:2], " ") // a sandbox's further arguments are descriptors
		}
	}
	for _, dir := range []string{"rootfs/.gvisor.filestore.*", "hibernate/sandbox/*", "hibernate/log/*"} {
		found, err := filepath.Glob(filepath.Join(a.w.Path(a.Bundle()), dir))
		a.must(err)
		for _, f := range found {
			if !strings.HasSuffix(f, ".log") { // of failed calls, kept for people
				lines = append(lines, "bundle: "+filepath.Base(f))
			}
		}
	}
	for _, f := range append(a.stored("*"), a.stored("trash/*")...) {
		if name := filepath.Base(f); name != "quarantine" && name != "lock" && name != "trash" && !sequence.MatchString(name) {
			lines = append(lines, "snapshots: "+name)
		}
	}
	slices.Sort(lines)
	return lines
}

var (
	stub     = regexp.MustCompile(`^process: \d+ \[`) // gVisor's, as many as it needs
	number   = regexp.MustCompile(`^(process: )\d+ `)
	sequence = regexp.MustCompile(`^[0-9]+$`)
)

// sameAs waits until there is neither more nor less than before.
func (a *app) sameAs(before []string) {
	a.Helper()
	var now []string
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(50 * time.Millisecond) {
		if now = a.inventory(); slices.Equal(now, before) {
			return
		}
	}
	a.Errorf("there is more or less than before:\n%s", strings.Join(difference(before, now), "\n"))
}

func difference(before, now []string) []string {
	var out []string
	count := map[string]int{}
	for _, l := range before {
		count[l]--
	}
	for _, l := range now {
		count[l]++
	}
	for l, n := range count {
		for ; n > 0; n-- {
			out = append(out, "+ "+l)
		}
		for ; n < 0; n++ {
			out = append(out, "- "+l)
		}
	}
	slices.Sort(out)
	return out
}

// noMoreOpen waits until the app's shim has about as many descriptors open as before.
func (a *app) noMoreOpen(before int) {
	a.Helper()
	begin := time.Now()
	for a.Descriptors() > before+2 {
		if time.Sleep(10 * time.Millisecond); time.Since(begin) < patience {
			continue
		}
		var open []string
		found, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", a.Shim()))
		for _, f := range found {
			target, _ := os.Readlink(f)
			open = append(open, target)
		}
		a.Fatalf("the shim has %d open, %d before:\n%s", len(open), before, strings.Join(open, "\n"))
	}
}
