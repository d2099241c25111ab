package manager

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/containerd/api/types/runtimeoptions/v1"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/testroot"
	runtimeopts "github.com/hibernate-runtime/hibernate/shim/options"
)

// answer is what a containerd makes of the program's output.
type answer struct {
	version  int
	address  string
	protocol string
}

// Containerd 2.3 and 2.4 decode protobuf, then JSON.
func parseNew(t *testing.T, out []byte) answer {
	var r bootstrap.BootstrapResult
	if err := proto.Unmarshal(out, &r); err != nil {
		return parse2(t, out)
	}
	return answer{int(r.Version), r.Address, r.Protocol}
}

// Containerd 2.0 to 2.2 decode JSON.
func parse2(t *testing.T, out []byte) answer {
	t.Helper()
	var r struct {
		Version           int
		Address, Protocol string
	}
	if err := json.Unmarshal(out, &r); err != nil || r.Version < 2 {
		t.Fatalf("%q would be taken for a bare address", out)
	}
	return answer{r.Version, r.Address, r.Protocol}
}

// Containerd 1.7 decodes JSON too, and knows no version after 2.
func parse17(t *testing.T, out []byte) answer {
	t.Helper()
	a := parse2(t, out)
	if a.version > 2 {
		t.Fatalf("version %d is refused", a.version)
	}
	return a
}

func params(t *testing.T, b *bundle, id string, extensions ...proto.Message) []byte {
	t.Helper()
	dir := socketDir(t)
	p := &bootstrap.BootstrapParams{
		InstanceID: id, Namespace: testNamespace, ContainerdVersion: "2.4.2",
		ContainerdGrpcAddress: b.address, ContainerdTtrpcAddress: b.address + ".ttrpc", SocketDir: &dir,
	}
	for _, e := range extensions {
		if err := p.AddExtension(e); err != nil {
			t.Fatal(err)
		}
	}
	return marshal(t, p)
}

func marshal(t *testing.T, m proto.Message) []byte {
	t.Helper()
	data, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func packed(t *testing.T, v any) []byte {
	t.Helper()
	a, err := typeurl.MarshalAnyToProto(v)
	if err != nil {
		t.Fatal(err)
	}
	return marshal(t, a)
}

func TestStartProtocols(t *testing.T) {
	ours := &runtimeoptions.Options{ConfigPath: "/etc/x.toml"}
	kept := runtimeopts.Runtime{ConfigPath: "/etc/x.toml"}
	runc := &options.Options{BinaryName: "runc"}
	for _, tc := range []struct {
		name    string
		legacy  bool // the sockets are in containerd's own directory
		stdin   func(*bundle) []byte
		parse   func(*testing.T, []byte) answer
		version int
		options runtimeopts.Runtime
	}{
		{"2.4", false, func(b *bundle) []byte { return params(t, b, b.id) }, parseNew, 3, runtimeopts.Runtime{}},
		{"2.4 with options", false, func(b *bundle) []byte { return params(t, b, b.id, runc, ours) }, parseNew, 3, kept},
		{"2.2 with options", true, func(*bundle) []byte { return packed(t, ours) }, parse2, 2, kept},
		{"2.2 with another runtime's options", true, func(*bundle) []byte { return packed(t, runc) }, parse2, 2, runtimeopts.Runtime{}},
		{"2.0 without", true, func(*bundle) []byte { return nil }, parse2, 2, runtimeopts.Runtime{}},
		{"1.7 with options", true, func(*bundle) []byte { return packed(t, ours) }, parse17, 2, kept},
		{"1.7 without", true, func(*bundle) []byte { return nil }, parse17, 2, runtimeopts.Runtime{}},
		{"2.4 reads an old answer", true, func(*bundle) []byte { return nil }, parseNew, 2, runtimeopts.Runtime{}},
		{"bootstrap of another container", true, func(b *bundle) []byte { return params(t, b, "other") }, parse2, 2, runtimeopts.Runtime{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.legacy {
				testroot.Require(t)
			}
			b := newBundle(t, nil)
			a := tc.parse(t, b.start(tc.stdin(b)))
			if a.version != tc.version || a.protocol != "ttrpc" {
				t.Errorf("answer %+v, want version %d and ttrpc", a, tc.version)
			}
			if got, err := runtimeopts.Load(b.dir); err != nil || got != tc.options {
				t.Errorf("options kept: %+v, %v; want %+v", got, err, tc.options)
			}
			checkDaemon(t, b, a)
		})
	}
}

// checkDaemon calls the services, ends the daemon, and looks whether it cleans up.
func checkDaemon(t *testing.T, b *bundle, a answer) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	client := dial(t, a.address)
	v2, err := taskv2.NewTTRPCTaskClient(client).Connect(ctx, &taskv2.ConnectRequest{ID: b.id})
	if err != nil || int(v2.ShimPid) != b.pid() || v2.Version != b.dir {
		t.Errorf("v2 Connect = %v, %v; want pid %d in %s", v2, err, b.pid(), b.dir)
	}
	v3, err := taskv3.NewTTRPCTaskClient(client).Connect(ctx, &taskv3.ConnectRequest{ID: b.id})
	if err != nil || int(v3.ShimPid) != b.pid() {
		t.Errorf("v3 Connect = %v, %v", v3, err)
	}
	if s, err := shimv1.NewTTRPCShimClient(client).Status(ctx, &shimv1.StatusRequest{}); err != nil || s.State != "awake" {
		t.Errorf("own Status = %v, %v", s, err)
	}
	if group, err := unix.Getpgid(b.pid()); err != nil || group != b.pid() {
		t.Errorf("process group %d, %v; want its own", group, err)
	}
	shutdown(ctx, t, client, a.version)
	b.waitEnd()
	if _, err := os.Stat(strings.TrimPrefix(a.address, "unix://")); !os.IsNotExist(err) {
		t.Errorf("the socket is left behind: %v", err)
	}
}

// shutdown ends the daemon by the service that containerd would use. The answer may be lost as it ends.
func shutdown(ctx context.Context, t *testing.T, client *ttrpc.Client, version int) {
	t.Helper()
	if version == 2 {
		_, _ = taskv2.NewTTRPCTaskClient(client).Shutdown(ctx, &taskv2.ShutdownRequest{})
		return
	}
	_, _ = taskv3.NewTTRPCTaskClient(client).Shutdown(ctx, &taskv3.ShutdownRequest{})
}

func TestStartRefuses(t *testing.T) {
	for _, tc := range []struct {
		name  string
		stdin []byte
		spoil func(*bundle)
		want  string
	}{
		{"garbage", []byte("\xff\xff\xff"), nil, "stdin is neither"},
		{"too much", make([]byte, maxInput+1), nil, "more than"},
		{"no config.json", nil, func(b *bundle) { os.Remove(filepath.Join(b.dir, "config.json")) }, "find the container's group"},
		{"broken config.json", nil, func(b *bundle) { os.Truncate(filepath.Join(b.dir, "config.json"), 3) }, "config.json"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBundle(t, nil)
			if tc.spoil != nil {
				tc.spoil(b)
			}
			r := b.call(tc.stdin, "start")
			if r.err == nil || !strings.Contains(string(r.stderr), tc.want) || len(r.stdout) > 0 {
				t.Errorf("start: %v, stdout %q, stderr %q; want %q", r.err, r.stdout, r.stderr, tc.want)
			}
			if b.pid() != 0 {
				t.Error("a daemon was started")
			}
		})
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	b := newBundle(t, nil)
	stdin := params(t, b, b.id)
	first := parseNew(t, b.start(stdin))
	if err := unix.Kill(b.pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.waitEnd()
	if _, err := os.Stat(strings.TrimPrefix(first.address, "unix://")); err != nil {
		t.Fatalf("a killed daemon left no socket: %v", err)
	}
	second := parseNew(t, b.start(stdin))
	if second.address != first.address {
		t.Errorf("address %s, was %s", second.address, first.address)
	}
	checkDaemon(t, b, second)
}

func TestGroupSharesADaemon(t *testing.T) {
	for _, label := range groupLabels {
		t.Run(label, func(t *testing.T) {
			pod := newBundle(t, map[string]string{label: "pod"})
			member := newBundle(t, map[string]string{label: "pod"})
			member.address = pod.address
			dir := socketDir(t)
			start := func(b *bundle) answer {
				return parseNew(t, b.start(marshal(t, &bootstrap.BootstrapParams{
					InstanceID: b.id, Namespace: testNamespace, ContainerdGrpcAddress: b.address, SocketDir: &dir,
				})))
			}
			first, second := start(pod), start(member)
			if first.address != second.address {
				t.Errorf("addresses %s and %s", first.address, second.address)
			}
			if member.pid() != 0 {
				t.Error("the second container has a daemon of its own")
			}
			if out := member.call(nil, "-bundle", member.dir, "delete"); out.err != nil {
				t.Errorf("delete: %v %s", out.err, out.stderr)
			}
			checkDaemon(t, pod, first)
		})
	}
}
