package facts_test

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/hibernate-runtime/hibernate/daemon/facts"
	"github.com/hibernate-runtime/hibernate/runsc"
)

// pretend writes a program that says of itself what runsc does.
func pretend(t *testing.T, path, version string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nfor a; do case $a in --version) echo runsc version %s;; cpu-features) echo sse,avx;; esac; done\n", version)
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// What a node tells is what others read, whatever is beside its configured runsc.
func TestFacts(t *testing.T) {
	dir := t.TempDir()
	main := pretend(t, filepath.Join(dir, "bin", "runsc"), "two")
	pretend(t, filepath.Join(dir, "shelf", "one", "runsc"), "one")
	pretend(t, filepath.Join(dir, "shelf", "same", "runsc"), "two")
	if err := os.WriteFile(filepath.Join(dir, "shelf", "one", "checkpointgofer"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	n := facts.New(facts.Options{
		Runsc: func() (string, error) { return main, nil }, Shelf: runsc.Shelf{Dir: filepath.Join(dir, "shelf")}, Platform: "systrap", Version: "v1",
		CPUGiven: []string{"sse"}, Meminfo: func() (uint64, uint64) { return 8 << 30, 1 << 30 },
	})
	if before := n.Facts(); before[facts.Runscs] != "" || before[facts.CPUFeatures] != "" || before[facts.Arch] == "" {
		t.Errorf("before a look: %v", before)
	}
	n.Look(t.Context())
	all := n.Facts()
	for name, want := range map[string]string{
		facts.CPUFeatures: "sse avx", facts.CPUGiven: "sse", facts.Platform: "systrap", facts.Version: "v1", facts.Memory: "8589934592", facts.Available: "1073741824",
	} {
		if all[name] != want {
			t.Errorf("%s is %q, want %q", name, all[name], want)
		}
	}
	a := facts.AbilityOf(all)
	if !reflect.DeepEqual(a, n.Ability()) {
		t.Errorf("read as %+v, is %+v", a, n.Ability())
	}
	var versions []string
	for _, r := range a.Runscs {
		versions = append(versions, r.Version)
		if len(r.SHA256) != 64 {
			t.Errorf("digest %q", r.SHA256)
		}
	}
	if !slices.Equal(versions, []string{"two", "one"}) {
		t.Errorf("runscs %v", versions)
	}
	kept, first, err := n.Runscs()
	if err != nil || !first || len(kept) != 2 || kept[0].Sidecar != "" || !strings.HasSuffix(kept[1].Sidecar, "/one/checkpointgofer") {
		t.Errorf("%+v, %v", kept, err)
	}
	needs := a
	needs.Runscs = needs.Runscs[1:]
	if err := n.Ability().Refuses(needs); err != nil {
		t.Errorf("what the kept one has made is refused: %v", err)
	}
}

// A shelf with more than the store takes is told in part.
func TestManyFacts(t *testing.T) {
	dir := t.TempDir()
	for i := range 100 {
		pretend(t, filepath.Join(dir, fmt.Sprint(i), "runsc"), fmt.Sprintf("release-of-some-length-%d", i))
	}
	n := facts.New(facts.Options{Runsc: func() (string, error) { return "", os.ErrNotExist }, Shelf: runsc.Shelf{Dir: dir}})
	n.Look(t.Context())
	text := n.Facts()[facts.Runscs]
	if got := len(strings.Fields(text)); len(text) > 8<<10-100 || got < 50 || got == 100 {
		t.Errorf("%d bytes, %d runscs", len(text), got)
	}
	for _, r := range facts.AbilityOf(n.Facts()).Runscs {
		if len(r.SHA256) != 64 {
			t.Errorf("cut in the middle: %+v", r)
		}
	}
	if _, first, err := n.Runscs(); err == nil || first {
		t.Error("a runsc that is missing is not told")
	}
}
