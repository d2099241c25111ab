package snapshot

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func exampleSpec() *specs.Spec {
	return &specs.Spec{
		Version:  "1.2.0",
		Hostname: "pod-1",
		Root:     &specs.Root{Path: "/a/rootfs"},
		Process: &specs.Process{
			Args: []string{"/usr/bin/redis-server", "--port", "6379"},
			Env:  []string{"PATH=/bin", "HOSTNAME=pod-1", "SECRET=hunter2"},
			Cwd:  "/",
			Capabilities: &specs.LinuxCapabilities{
				Bounding: []string{"CAP_CHOWN", "CAP_KILL"},
			},
			Rlimits: []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 60, Soft: 1}, {Type: "RLIMIT_CORE"}},
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/data", Type: "bind", Source: "/var/a", Options: []string{"rbind", "rw"}},
		},
		Annotations: map[string]string{"io.kubernetes.cri.sandbox-id": "a", "dev.gvisor.flag.debug": "true"},
		Linux: &specs.Linux{
			CgroupsPath: "/a",
			Namespaces:  []specs.LinuxNamespace{{Type: "network", Path: "/run/netns/a"}, {Type: "pid"}},
			Devices:     []specs.LinuxDevice{{Path: "/dev/x", Type: "c", Major: 1}},
		},
	}
}

func changed(fn func(*specs.Spec)) *specs.Spec {
	s := exampleSpec()
	fn(s)
	return s
}

func TestSpecDigestIgnoresWhatMayDiffer(t *testing.T) {
	limit := int64(1 << 20)
	for name, change := range map[string]func(*specs.Spec){
		"root path":    func(s *specs.Spec) { s.Root.Path = "/b" },
		"mount source": func(s *specs.Spec) { s.Mounts[1].Source = "/var/b" },
		"hostname": func(s *specs.Spec) {
			s.Hostname = "pod-2"
			s.Process.Env[1] = "HOSTNAME=pod-2"
		},
		"domainname": func(s *specs.Spec) { s.Domainname = "x" },
		"hooks":      func(s *specs.Spec) { s.Hooks = &specs.Hooks{Poststart: []specs.Hook{{Path: "/x"}}} },
		"cgroup":     func(s *specs.Spec) { s.Linux.CgroupsPath = "/b" },
		"resources": func(s *specs.Spec) {
			s.Linux.Resources = &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
		},
		"namespace path":    func(s *specs.Spec) { s.Linux.Namespaces[0].Path = "/run/netns/b" },
		"namespace order":   func(s *specs.Spec) { slices.Reverse(s.Linux.Namespaces) },
		"capability order":  func(s *specs.Spec) { slices.Reverse(s.Process.Capabilities.Bounding) },
		"rlimit order":      func(s *specs.Spec) { slices.Reverse(s.Process.Rlimits) },
		"env order":         func(s *specs.Spec) { slices.Reverse(s.Process.Env) },
		"env overridden":    func(s *specs.Spec) { s.Process.Env = append([]string{"SECRET=old"}, s.Process.Env...) },
		"device number":     func(s *specs.Spec) { s.Linux.Devices[0].Major = 2 },
		"path of program":   func(s *specs.Spec) { s.Process.Args[0] = "/bin/redis-server" },
		"other annotations": func(s *specs.Spec) { s.Annotations["io.kubernetes.cri.sandbox-id"] = "b" },
		"log flags":         func(s *specs.Spec) { s.Annotations["dev.gvisor.flag.debug"] = "false" },
		"internal":          func(s *specs.Spec) { s.Annotations["dev.gvisor.internal.x"] = "1" },
		"source annotation": func(s *specs.Spec) { s.Annotations["dev.gvisor.spec.mount.data.source"] = "/x" },
		"empty lists":       func(s *specs.Spec) { s.Linux.Sysctl = map[string]string{}; s.Linux.MaskedPaths = []string{} },
	} {
		if d := specDiff(t, exampleSpec(), changed(change)); len(d) != 0 {
			t.Errorf("%s: %v", name, d)
		}
	}
}

func TestSpecDigestNamesWhatMatters(t *testing.T) {
	yes := true
	for name, c := range map[string]struct {
		change func(*specs.Spec)
		want   string
	}{
		"version":      {func(s *specs.Spec) { s.Version = "1.0.0" }, "ociVersion"},
		"argument":     {func(s *specs.Spec) { s.Process.Args[2] = "6380" }, "process.args[2]"},
		"arguments":    {func(s *specs.Spec) { s.Process.Args = s.Process.Args[:1] }, "process.args"},
		"program":      {func(s *specs.Spec) { s.Process.Args[0] = "/bin/sh" }, "process.args[0]"},
		"env":          {func(s *specs.Spec) { s.Process.Env[2] = "SECRET=other" }, "process.env.SECRET"},
		"env added":    {func(s *specs.Spec) { s.Process.Env = append(s.Process.Env, "X=") }, "process.env.X"},
		"own HOSTNAME": {func(s *specs.Spec) { s.Process.Env[1] = "HOSTNAME=x" }, "process.env.HOSTNAME"},
		"cwd":          {func(s *specs.Spec) { s.Process.Cwd = "/x" }, "process.cwd"},
		"terminal":     {func(s *specs.Spec) { s.Process.Terminal = true }, "process.terminal"},
		"user":         {func(s *specs.Spec) { s.Process.User.UID = 5 }, "process.user.uid"},
		"rlimit":       {func(s *specs.Spec) { s.Process.Rlimits[0].Hard-- }, "process.rlimits[RLIMIT_NOFILE].hard"},
		"capability":   {func(s *specs.Spec) { s.Process.Capabilities.Bounding[0] = "CAP_X" }, "process.capabilities.bounding[0]"},
		"oom":          {func(s *specs.Spec) { n := 5; s.Process.OOMScoreAdj = &n }, "process.oomScoreAdj"},
		"readonly":     {func(s *specs.Spec) { s.Root.Readonly = true }, "root"},
		"mount type":   {func(s *specs.Spec) { s.Mounts[1].Type = "tmpfs" }, "mounts[/data].type"},
		"mount added": {func(s *specs.Spec) {
			s.Mounts = append([]specs.Mount{{Destination: "/x", Type: "tmpfs"}}, s.Mounts...)
		}, "mounts[/x]"},
		"mount order":     {func(s *specs.Spec) { slices.Reverse(s.Mounts) }, "mounts"},
		"namespace":       {func(s *specs.Spec) { s.Linux.Namespaces = s.Linux.Namespaces[:1] }, "linux.namespaces[pid]"},
		"device":          {func(s *specs.Spec) { s.Linux.Devices[0].Path = "/dev/y" }, "linux.devices[/dev/x]"},
		"gvisor's":        {func(s *specs.Spec) { s.Annotations["dev.gvisor.flag.overlay2"] = "none" }, "annotations"},
		"no new privs":    {func(s *specs.Spec) { s.Process.NoNewPrivileges = yes }, "process.noNewPrivileges"},
		"no linux at all": {func(s *specs.Spec) { s.Linux = nil }, "linux"},
	} {
		d := specDiff(t, exampleSpec(), changed(c.change))
		if len(d) == 0 || d[0] != c.want {
			t.Errorf("%s: %v, want %s", name, d, c.want)
		}
		if strings.Contains(strings.Join(d, " "), "hunter2") {
			t.Errorf("%s: tells a secret", name)
		}
	}
}

// specDiff also checks that the digests agree with it.
func specDiff(t *testing.T, a, b *specs.Spec) []string {
	t.Helper()
	frozen, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	d, err := SpecDiff(frozen, b)
	if err != nil {
		t.Fatal(err)
	}
	da, err := SpecDigest(a)
	if err != nil {
		t.Fatal(err)
	}
	db, err := SpecDigest(b)
	if err != nil {
		t.Fatal(err)
	}
	if (da == db) != (len(d) == 0) {
		t.Errorf("digests equal: %v, differences: %v", da == db, d)
	}
	return d
}

// The digest is stored: it must not change from one release to the next.
func TestSpecDigestIsStable(t *testing.T) {
	data, err := CanonicalSpec(exampleSpec())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"linux":{"devices":[{"path":"/dev/x","type":"c"}],"namespaces":[{"type":"network"},{"type":"pid"}]},` +
		`"mounts":[{"destination":"/proc","type":"proc"},{"destination":"/data","options":["rbind","rw"],"type":"bind"}],` +
		`"ociVersion":"1.2.0","process":{"args":["redis-server","--port","6379"],"capabilities":{"bounding":["CAP_CHOWN","CAP_KILL"]},` +
		`"cwd":"/","env":{"PATH":"/bin","SECRET":"hunter2"},"rlimits":[{"hard":0,"soft":0,"type":"RLIMIT_CORE"},` +
		`{"hard":1152921504606846976,"soft":1,"type":"RLIMIT_NOFILE"}],"user":{"gid":0,"uid":0}}}`
	if string(data) != want {
		t.Errorf("canonical form changed:\n%s", data)
	}
	if a, b := SpecsDigest("a", "b"), SpecsDigest("b", "a"); a == b || !strings.HasPrefix(a, "sha256:") {
		t.Error(a, b)
	}
}
