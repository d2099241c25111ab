package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/internal/config"
	"github.com/hibernate-runtime/hibernate/internal/cordon"
	"github.com/hibernate-runtime/hibernate/internal/freeze"
	"github.com/hibernate-runtime/hibernate/internal/testroot"
)

// machine is one on which all is well, with a root of its own.
type machine struct {
	*Host
	t *testing.T
}

func newMachine(t *testing.T) machine {
	t.Helper()
	cfg := config.Default()
	m := machine{&Host{
		Root: t.TempDir(), UID: os.Geteuid(), Config: cfg, ConfigFile: config.DefaultFile, Version: "v1", Workloads: 10,
		Find: func(name string) (string, error) { return filepath.Join("/usr/local/bin", filepath.Base(name)), nil },
		Exec: func(_ context.Context, path string, args ...string) (string, error) {
			switch filepath.Base(path) + " " + strings.Join(args, " ") {
			case "runsc --version":
				return "runsc version release-1\nspec: 1.1.0-rc.1", nil
			case "checkpointgofer -version":
				return "release-1", nil
			}
			return "", fmt.Errorf("%s is not there: %w", path, fs.ErrNotExist)
		},
		Free:         func(string) (uint64, error) { return 100 << 30, nil },
		Device:       func(string) (uint32, uint32, error) { return 253, 1, nil },
		Network:      func(context.Context) error { return nil },
		Synchronised: func() (bool, error) { return true, nil },
		Daemon: func(context.Context) (*daemonv1.VersionResponse, error) {
			return &daemonv1.VersionResponse{Version: "v1", Store: &daemonv1.StoreCondition{Fences: "yes", Condition: "fences"}}, nil
		},
		Containerd: func(context.Context, string) (string, error) { return "v2.1.4", nil },
	}, t}
	m.write("/proc/sys/kernel/osrelease", "6.12.1-amd64\n")
	m.write("/sys/fs/cgroup/cgroup.controllers", "cpu memory pids\n")
	for name, value := range map[string]string{
		"net/ipv4/neigh/default/gc_thresh3": "8192", "fs/inotify/max_user_instances": "8192", "kernel/pid_max": "4194304", "kernel/threads-max": "200000",
	} {
		m.write("/proc/sys/"+name, value+"\n")
	}
	m.write("/etc/hibernate/config.toml", "")
	m.write("/etc/containerd/config.toml", "runtime_type = 'io.containerd.hibernate.v1'\npod_annotations = ['io.containerd.hibernate/*']\n")
	m.write("/sys/devices/virtual/block/dm-1/dm/uuid", "CRYPT-LUKS2-0123-data")
	m.link("/sys/dev/block/253:1", "../../devices/virtual/block/dm-1")
	m.write("/usr/local/bin/"+shimProgram, "")
	for _, dir := range []string{cfg.RunDir, cfg.DataDir} {
		if err := os.MkdirAll(m.path(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

func (m machine) write(name, text string) {
	m.t.Helper()
	path := m.path(name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

func (m machine) link(name, target string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(m.path(name)), 0o755), os.Symlink(target, m.path(name))); err != nil {
		m.t.Fatal(err)
	}
}

// look makes one check.
func (m machine) look(name string) Result {
	m.t.Helper()
	for _, c := range Checks() {
		if c.Name == name {
			return c.run(m.t.Context(), m.Host)
		}
	}
	m.t.Fatalf("no check %s", name)
	return Result{}
}

// The runsc that all this finds is a file of the test's, since its digest is taken from it.
func (m machine) runscFile() {
	path := filepath.Join(m.t.TempDir(), "runsc")
	if err := os.WriteFile(path, []byte("a runsc"), 0o700); err != nil {
		m.t.Fatal(err)
	}
	find := m.Find
	m.Host.Find = func(name string) (string, error) {
		if name == "runsc" {
			return path, nil
		}
		return find(name)
	}
}

func TestAllIsWell(t *testing.T) {
	m := newMachine(t)
	m.runscFile()
	m.Config.Store = "s3://b"
	results := Run(t.Context(), m.Host)
	if len(results) != len(Checks()) {
		t.Fatalf("%d results", len(results))
	}
	for i, r := range results {
		if r.Level != OK || r.Finding == "" || r.Means != "" || r.Do != "" || r.Check != Checks()[i].Name {
			t.Errorf("%+v", r)
		}
	}
	if Worst(results) != OK || Worst(append(results, Result{Level: Warning})) != Warning || Worst([]Result{{Level: Problem}, {Level: Warning}}) != Problem {
		t.Error("the worst level is wrong")
	}
}

// faults are what can be wrong: each is found by its check, with its level.
var faults = []struct {
	name    string
	check   string
	level   Level
	finding string
	make    func(machine)
}{
	{"not TOML", "configuration", Problem, "line 3", func(m machine) { m.ConfigErr = errors.New("line 3") }},
	{"no file", "configuration", OK, "as the defaults have it", func(m machine) { m.Host.ConfigFile = "/etc/none" }},
	{"old kernel", "kernel", Problem, "older than 5.10", func(m machine) { m.write("/proc/sys/kernel/osrelease", "5.4.0-42") }},
	{"no fast path", "kernel", Warning, "no fast path", func(m machine) { m.write("/proc/sys/kernel/osrelease", "6.1.0-25-amd64") }},
	{"no proc", "kernel", Warning, "no such file", func(m machine) { _ = os.Remove(m.path("/proc/sys/kernel/osrelease")) }},
	{"no nft", "network", Problem, "module nf_tables", func(m machine) {
		m.Host.Network = func(context.Context) error { return errors.New("module nf_tables") }
	}},
	{"not root", "network", Warning, "by root only", func(m machine) { m.Host.Network = func(context.Context) error { return os.ErrPermission } }},
	{"no memory controller", "cgroup", Problem, "without memory", func(m machine) { m.write("/sys/fs/cgroup/cgroup.controllers", "cpu pids") }},
	{"version 1", "cgroup", OK, "version 1", func(m machine) {
		_ = os.Remove(m.path("/sys/fs/cgroup/cgroup.controllers"))
		m.write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1")
	}},
	{"no cgroup", "cgroup", Problem, "no cgroup", func(m machine) { _ = os.Remove(m.path("/sys/fs/cgroup/cgroup.controllers")) }},
	{"few neighbours", "neighbours", Problem, "gc_thresh3 is 1024: enough for about 192 workloads, and there are 500", func(m machine) {
		m.write("/proc/sys/net/ipv4/neigh/default/gc_thresh3", "1024")
		m.Host.Workloads = 500
	}},
	{"neighbours for now", "neighbours", Warning, "enough for about 192", func(m machine) {
		m.write("/proc/sys/net/ipv4/neigh/default/gc_thresh3", "1024")
		m.Host.Workloads = 150
	}},
	{"few inotify instances", "inotify", Problem, "max_user_instances is 128", func(m machine) {
		m.write("/proc/sys/fs/inotify/max_user_instances", "128")
		m.Host.Workloads = 100
	}},
	{"no number", "inotify", Warning, "no number", func(m machine) { m.write("/proc/sys/fs/inotify/max_user_instances", "many") }},
	{"few pids", "processes", Problem, "pid_max", func(m machine) {
		m.write("/proc/sys/kernel/pid_max", "32768")
		m.Host.Workloads = 900
	}},
	{"few threads", "processes", Problem, "threads-max", func(m machine) {
		m.write("/proc/sys/kernel/threads-max", "10000")
		m.Host.Workloads = 900
	}},
	{"page reporting", "memory", Warning, "free page reporting", func(m machine) { m.write("/sys/module/page_reporting/parameters/page_reporting_order", "9") }},
	{"no helper", "programs", Problem, "hibernate-helper", func(m machine) {
		m.Host.Find = func(name string) (string, error) { return "", fmt.Errorf("find %s: %w", name, fs.ErrNotExist) }
		m.Config.Helper = "hibernate-helper"
		find := m.Find
		m.Host.Find = func(name string) (string, error) {
			if name == shimProgram {
				return "/x", nil
			}
			return find(name)
		}
	}},
	{"no runsc", "runsc", Problem, "no runsc", func(m machine) { m.Host.Find = func(string) (string, error) { return "", errors.New("no runsc") } }},
	{"not a runsc", "runsc", Problem, "it is no runsc", func(m machine) {
		m.Host.Exec = func(context.Context, string, ...string) (string, error) { return "runc version 1", nil }
	}},
	{"not stamped", "runsc", Warning, "has no version, sha256 ", func(m machine) {
		m.runscFile()
		m.Host.Exec = func(context.Context, string, ...string) (string, error) { return "runsc version VERSION_MISSING", nil }
	}},
	{"no sidecar", "sidecar", Warning, "is not there", func(m machine) { m.Config.Sidecar = "/opt/none" }},
	{"another sidecar", "sidecar", Warning, "is for runsc release-0", func(m machine) {
		exec := m.Exec
		m.Host.Exec = func(ctx context.Context, path string, args ...string) (string, error) {
			if args[0] == "-version" {
				return "release-0", nil
			}
			return exec(ctx, path, args...)
		}
	}},
	{"plain", "sidecar", OK, "not used", func(m machine) { m.Config.Load, m.Config.Sidecar = config.LoadPlain, "/opt/none" }},
	{"no containerd", "containerd", Warning, "no containerd at", func(m machine) { m.Host.Containerd = version("", fs.ErrNotExist) }},
	{"containerd hangs", "containerd", Problem, "deadline", func(m machine) { m.Host.Containerd = version("", context.DeadlineExceeded) }},
	{"old containerd", "containerd", Problem, "containerd 1.5.2", func(m machine) { m.Host.Containerd = version("1.5.2", nil) }},
	{"shim not in PATH", "runtime", Problem, "in none of /bin", func(m machine) { m.containerd("/bin:/sbin", "1ffffffffff") }},
	{"shim in PATH", "runtime", OK, "known to CRI", func(m machine) { m.containerd("/bin:/usr/local/bin", "1ffffffffff") }},
	{"may not lower oom_score_adj", "runtime", Warning, "oom_score_adj", func(m machine) { m.containerd("/usr/local/bin", "a80425fb") }},
	{"restricts oom_score_adj", "runtime", OK, "restrict_oom_score_adj", func(m machine) {
		m.containerd("/usr/local/bin", "a80425fb")
		m.write("/etc/containerd/conf.d/a.toml", "restrict_oom_score_adj = true")
	}},
	{"not known to CRI", "runtime", Warning, "no runtime of type", func(m machine) { m.write("/etc/containerd/config.toml", "version = 3") }},
	{"no annotations", "runtime", Warning, "without pod_annotations", func(m machine) { m.write("/etc/containerd/config.toml", "io.containerd.hibernate.v1") }},
	{"no daemon", "daemon", Problem, "not running", func(m machine) {
		m.Host.Daemon = func(context.Context) (*daemonv1.VersionResponse, error) { return nil, errors.New("not running") }
	}},
	{"another version", "daemon", Warning, "hibernated is v1, hibernatectl v2", func(m machine) { m.Host.Version = "v2" }},
	{"no store", "store", OK, "none is configured", func(m machine) {}},
	{"store without a daemon", "store", Warning, "doesn't answer", func(m machine) {
		m.Config.Store = "s3://b"
		m.Host.Daemon = func(context.Context) (*daemonv1.VersionResponse, error) { return nil, errors.New("not running") }
	}},
	{"daemon without the store", "store", Warning, "hibernated has none", func(m machine) { m.condition(nil) }},
	{"store away", "store", Problem, "can't be used: refused", func(m machine) {
		m.condition(&daemonv1.StoreCondition{Fences: "yes", Condition: "can't be used: refused"})
	}},
	{"store doesn't fence", "store", Warning, "does not fence", func(m machine) { m.condition(&daemonv1.StoreCondition{Fences: "no", Condition: "does not fence: why"}) }},
	{"stuck", "store", Warning, "2 workloads", func(m machine) { m.condition(&daemonv1.StoreCondition{Fences: "yes", Condition: "fences", Stuck: 2}) }},
	{"store's clock", "store", Warning, "differs from this machine's by 5m0s", func(m machine) {
		m.condition(&daemonv1.StoreCondition{Fences: "yes", Condition: "fences", AheadMs: -300_000})
	}},
	{"late", "store", Warning, "for 2h0m0s", func(m machine) {
		m.condition(&daemonv1.StoreCondition{Fences: "yes", Condition: "fences", LagMs: (2 * time.Hour).Milliseconds()})
	}},
	{"full", "disk", Problem, "has 100 MiB left", func(m machine) { m.Host.Free = func(string) (uint64, error) { return 100 << 20, nil } }},
	{"nearly full", "disk", Warning, "has 1.0 GiB left", func(m machine) { m.Host.Free = func(string) (uint64, error) { return 1 << 30, nil } }},
	{"in clear", "encryption", Warning, "lies on dm-1, and no dm-crypt", func(m machine) { m.write("/sys/devices/virtual/block/dm-1/dm/uuid", "LVM-abc") }},
	{"LVM on dm-crypt", "encryption", OK, "encrypted", func(m machine) {
		m.write("/sys/devices/virtual/block/dm-1/dm/uuid", "LVM-abc")
		m.write("/sys/devices/virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-x")
		m.link("/sys/devices/virtual/block/dm-1/slaves/dm-0", "../../dm-0")
	}},
	{"half of a mirror in clear", "encryption", Warning, "lies on sda", func(m machine) {
		m.write("/sys/devices/virtual/block/dm-1/dm/uuid", "LVM-abc")
		m.write("/sys/devices/virtual/block/dm-0/dm/uuid", "CRYPT-LUKS2-x")
		m.write("/sys/devices/pci/block/sda/size", "1")
		m.link("/sys/devices/virtual/block/dm-1/slaves/dm-0", "../../dm-0")
		m.link("/sys/devices/virtual/block/dm-1/slaves/sda", "../../../../pci/block/sda")
	}},
	{"overlay", "encryption", Warning, "no block device of its own", func(m machine) { m.Host.Device = func(string) (uint32, uint32, error) { return 0, 40, nil } }},
	{"open data-dir", "permissions", Problem, "/var/lib/hibernate has mode 0755 (chmod go= ", func(m machine) { m.mode("/var/lib/hibernate", 0o755) }},
	{"open socket", "permissions", Problem, "api.sock has mode 0666", func(m machine) {
		m.write("/run/hibernate/api.sock", "")
		m.mode("/run/hibernate/api.sock", 0o666)
	}},
	{"open key", "permissions", Problem, "store.key has mode 0640", func(m machine) {
		m.Config.StoreKeyFile = "/etc/hibernate/store.key"
		m.write("/etc/hibernate/store.key", "")
		m.mode("/etc/hibernate/store.key", 0o640)
	}},
	{"open older key", "permissions", Problem, "old.key has mode 0604", func(m machine) {
		m.Config.StoreOlderKeys = []string{"plaintext", "/etc/hibernate/old.key"}
		m.write("/etc/hibernate/old.key", "")
		m.mode("/etc/hibernate/old.key", 0o604)
	}},
	{"key program of others", "permissions", Problem, "/opt/kms has mode 0777 (chmod go-w ", func(m machine) {
		m.Config.StoreKeyCommand = []string{"/opt/kms", "arg"}
		m.write("/opt/kms", "")
		m.mode("/opt/kms", 0o777)
	}},
	{"program of others", "permissions", Problem, "containerd-shim-hibernate-v1 has mode 0775 (chmod go-w ", func(m machine) { m.mode("/usr/local/bin/"+shimProgram, 0o775) }},
	{"directory of others", "permissions", Problem, "/usr/local/bin has mode 0777", func(m machine) { m.mode("/usr/local/bin", 0o777) }},
	{"directory of a group", "permissions", OK, "root's alone", func(m machine) { m.mode("/usr/local/bin", 0o775) }},
	{"writable configuration", "permissions", Problem, "config.toml has mode 0664", func(m machine) { m.mode("/etc/hibernate/config.toml", 0o664) }},
	{"readable configuration", "permissions", OK, "root's alone", func(m machine) { m.mode("/etc/hibernate/config.toml", 0o644) }},
	{"another's", "permissions", Problem, "belongs to user", func(m machine) { m.Host.UID = os.Geteuid() + 1 }},
	{"unsynchronised", "clock", Warning, "not synchronised", func(m machine) { m.Host.Synchronised = func() (bool, error) { return false, nil } }},
	{"cordoned and frozen", "notes", Warning, "the node is cordoned since", func(m machine) {
		if err := errors.Join(cordon.Write(m.path("/run/hibernate"), cordon.Note{}), freeze.Write(m.path("/var/lib/hibernate"), freeze.Note{Match: "a/b"})); err != nil {
			m.t.Fatal(err)
		}
		if r := m.look("notes"); !strings.Contains(r.Finding, "a/b is frozen") || !strings.Contains(r.Do, "uncordon, hibernatectl unfreeze") {
			m.t.Errorf("%+v", r)
		}
	}},
}

func version(v string, err error) func(context.Context, string) (string, error) {
	return func(context.Context, string) (string, error) { return v, err }
}

// condition is what hibernated says of a store.
func (m machine) condition(s *daemonv1.StoreCondition) {
	m.Config.Store = "s3://b"
	m.Host.Daemon = func(context.Context) (*daemonv1.VersionResponse, error) {
		return &daemonv1.VersionResponse{Version: "v1", Store: s}, nil
	}
}

// containerd has one run.
func (m machine) containerd(path, caps string) {
	m.write("/proc/77/comm", "containerd\n")
	m.write("/proc/77/environ", "LANG=C\x00PATH="+path+"\x00")
	m.write("/proc/77/status", "Name:\tcontainerd\nCapEff:\t"+caps+"\n")
}

func (m machine) mode(name string, mode os.FileMode) {
	m.t.Helper()
	if err := os.Chmod(m.path(name), mode); err != nil {
		m.t.Fatal(err)
	}
}

func TestFaultsAreFound(t *testing.T) {
	tried := map[string]bool{}
	for _, f := range faults {
		tried[f.check] = true
		t.Run(f.check+"/"+f.name, func(t *testing.T) {
			m := newMachine(t)
			f.make(m)
			r := m.look(f.check)
			if r.Level != f.level || !strings.Contains(r.Finding, f.finding) {
				t.Errorf("%s %q, want %s with %q", r.Level, r.Finding, f.level, f.finding)
			}
			if (r.Level == OK) != (r.Means == "" && r.Do == "") {
				t.Errorf("means %q, do %q", r.Means, r.Do)
			}
		})
	}
	for _, c := range Checks() {
		if !tried[c.Name] || c.About == "" {
			t.Errorf("the check %s has no fault here, or says not what it looks at", c.Name)
		}
	}
}

// On this kernel all that is tried works, and leaves nothing.
func TestTheKernelsNetwork(t *testing.T) {
	testroot.Require(t)
	before, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := tryNetwork(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(10 * time.Millisecond) {
		after, err := os.ReadDir("/proc/self/task")
		if err == nil && len(after) <= len(before)+8 {
			break
		} else if time.Now().After(deadline) {
			t.Fatalf("threads stay: %d, then %d, %v", len(before), len(after), err)
		}
	}
}
