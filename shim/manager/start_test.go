package manager

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

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
	first := bootstrapped(t, b.start(stdin))
	if err := unix.Kill(b.pid(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	b.waitEnd()
	if _, err := os.Stat(strings.TrimPrefix(first.address, "unix://")); err != nil {
		t.Fatalf("a killed daemon left no socket: %v", err)
	}
	second := bootstrapped(t, b.start(stdin))
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
				return bootstrapped(t, b.start(marshal(t, &bootstrap.BootstrapParams{
					InstanceID: b.id, Namespace: testNamespace, ContainerdGrpcAddress: b.address, SocketDir: &dir,
				})))
			}
			first, second := start(pod), start(member)
			if first.address != second.address {
				t.Errorf("addresses %s and %s", first.address, second.address)
			}
			kept, err := os.ReadFile(filepath.Join(member.dir, AddressFile))
			if err != nil || string(kept) != first.address {
				t.Errorf("the second container's bundle has the address %q, %v", kept, err)
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

// The kernel, short of memory, ends a shim rather than containerd.
func TestOOMScoreIsAboveContainerds(t *testing.T) {
	score := func(pid string) int {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("/proc", pid, "oom_score_adj"))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	b := newBundle(t, nil)
	a := bootstrapped(t, b.start(params(t, b, b.id)))
	if got, want := score(strconv.Itoa(b.pid())), min(score("self")+1, 1000); got != want {
		t.Errorf("the daemon's score is %d, want %d", got, want)
	}
	checkDaemon(t, b, a)
}
