package plugin

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	taskv2 "github.com/containerd/containerd/api/runtime/task/v2"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/emptypb"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// task implements what the tests call.
type task struct{ taskapi.TTRPCTaskService }

func (task) Connect(_ context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	return &taskapi.ConnectResponse{ShimPid: 7, Version: r.ID}, nil
}

func (task) Kill(context.Context, *taskapi.KillRequest) (*emptypb.Empty, error) {
	return nil, fmt.Errorf("no such exec: %w", errdefs.ErrNotFound)
}

func (task) Pids(context.Context, *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	panic("oh")
}

type own struct{ shimv1.TTRPCShimService }

func (own) Status(context.Context, *shimv1.StatusRequest) (*shimv1.StatusResponse, error) {
	return &shimv1.StatusResponse{State: "awake"}, nil
}

func connect(t *testing.T) *ttrpc.Client {
	t.Helper()
	s := &services{task: task{}, own: own{}}
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(s.UnaryServerInterceptor()))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.RegisterTTRPC(server); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(context.Background(), l) }()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	client := ttrpc.NewClient(conn)
	t.Cleanup(func() { client.Close(); server.Close(); <-done })
	return client
}

func TestServicesOnOneServer(t *testing.T) {
	client := connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	v2, err := taskv2.NewTTRPCTaskClient(client).Connect(ctx, &taskv2.ConnectRequest{ID: "a"})
	if err != nil || v2.ShimPid != 7 || v2.Version != "a" {
		t.Errorf("v2 Connect = %v, %v", v2, err)
	}
	v3, err := taskapi.NewTTRPCTaskClient(client).Connect(ctx, &taskapi.ConnectRequest{ID: "b"})
	if err != nil || v3.ShimPid != 7 || v3.Version != "b" {
		t.Errorf("v3 Connect = %v, %v", v3, err)
	}
	status, err := shimv1.NewTTRPCShimClient(client).Status(ctx, &shimv1.StatusRequest{})
	if err != nil || status.State != "awake" {
		t.Errorf("own Status = %v, %v", status, err)
	}
}

func TestErrorsAndPanicsOfACall(t *testing.T) {
	client := connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()

	_, err := taskv2.NewTTRPCTaskClient(client).Kill(ctx, &taskv2.KillRequest{})
	if !errdefs.IsNotFound(errgrpc.ToNative(err)) {
		t.Errorf("Kill: %v is not NotFound", err)
	}
	_, err = taskapi.NewTTRPCTaskClient(client).Pids(ctx, &taskapi.PidsRequest{})
	if !errdefs.IsInternal(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "panic: oh") {
		t.Errorf("Pids: %v doesn't tell of the panic", err)
	}
	if _, err := taskapi.NewTTRPCTaskClient(client).Connect(ctx, &taskapi.ConnectRequest{}); err != nil {
		t.Errorf("after the panic: %v", err)
	}
}

// The v2 service is served with v3's messages: that holds as long as they are alike.
func TestTaskV2MessagesAreThoseOfV3(t *testing.T) {
	v2 := taskv2.File_runtime_task_v2_shim_proto
	v3 := taskapi.File_runtime_task_v3_shim_proto
	if a, b := shape(v2), shape(v3); a != b {
		t.Errorf("v2 and v3 differ:\n%s\n\n%s", a, b)
	}
}

func TestEveryMethodOfTaskV2IsServed(t *testing.T) {
	client := connect(t)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	methods := taskv2.File_runtime_task_v2_shim_proto.Services().Get(0).Methods()
	for i := range methods.Len() {
		name := string(methods.Get(i).Name())
		// What the test's service lacks panics, which is not NotImplemented.
		err := client.Call(ctx, taskV2, name, &taskapi.StateRequest{}, &emptypb.Empty{})
		if errdefs.IsNotImplemented(errgrpc.ToNative(err)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// shape writes a file's messages and methods without its package name.
func shape(f protoreflect.FileDescriptor) string {
	d := protodesc.ToFileDescriptorProto(f)
	text := fmt.Sprint(d.MessageType, d.Service)
	return strings.ReplaceAll(text, string(f.Package())+".", "")
}
