package cgroup

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestCleanPath(t *testing.T) {
	for in, want := range map[string]string{
		"/default/c1":                           "/default/c1",
		"relative/c1":                           "/relative/c1",
		"/a/../../b":                            "/b",
		"kubepods-besteffort-podx.slice:cri:c1": "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-podx.slice/cri-c1.scope",
		":cri:c1":                               "/system.slice/cri-c1.scope",
		"-.slice:cri:c1":                        "/cri-c1.scope",
		"a.slice::c1":                           "/a.slice/c1.scope",
		"a.slice:cri:b.slice":                   "/a.slice/b.slice",
		"":                                      "",
		"/":                                     "",
		"/a/..":                                 "",
		"a:b:c":                                 "",
		"a.slice:b:":                            "",
		"a--b.slice:b:c":                        "",
		"a.slice:../b:c":                        "",
	} {
		got, err := cleanPath(in)
		if got != want || (want == "") != errors.Is(err, ErrPath) {
			t.Errorf("%q gives %q, %v; want %q", in, got, err, want)
		}
	}
}

// What the files of a v2 group say is read from any directory.
func TestUnifiedReads(t *testing.T) {
	u := &unified{path: "/g", root: t.TempDir()}
	write(t, u.dir()+"/cpu.stat", "usage_usec 1500\nuser_usec 1000\n")
	write(t, u.dir()+"/memory.current", "1000\n")
	write(t, u.dir()+"/memory.stat", "anon 1\ninactive_file 300\n")
	g := Group{path: u.path, driver: u}
	if g.CPU().Microseconds() != 1500 || g.Memory() != 700 {
		t.Errorf("cpu %v, memory %d", g.CPU(), g.Memory())
	}
	if _, err := (&unified{path: "/none", root: u.root}).load(); !errors.Is(err, ErrGone) {
		t.Errorf("load: %v", err)
	}
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
