// Command stubshim is the shim program with services that do nothing, by which the tests of the start protocol drive
// the real manager and plugin.
package main

import (
	"context"
	"os"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"google.golang.org/protobuf/types/known/emptypb"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/shim/manager"
	"github.com/hibernate-runtime/hibernate/shim/plugin"
)

func main() {
	plugin.Register(func(_ context.Context, down shutdown.Service) (
		taskapi.TTRPCTaskService, shimv1.TTRPCShimService, error,
	) {
		return &task{down: down}, own{}, nil
	})
	os.Exit(manager.Main(manager.Options{
		Runtime: "io.containerd.hibernate.v1", Version: "1.2.3", Revision: "abc", Cleanup: cleanup,
	}))
}

func cleanup(context.Context, string) (int, time.Time, int, error) {
	return 137, time.Unix(1, 0), 42, nil
}

type task struct {
	taskapi.TTRPCTaskService
	down shutdown.Service
}

// Connect answers with this process and its working directory.
func (t *task) Connect(context.Context, *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	dir, err := os.Getwd()
	return &taskapi.ConnectResponse{ShimPid: uint32(os.Getpid()), Version: dir}, err
}

// Shutdown ends the process.
func (t *task) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	t.down.Shutdown()
	return &emptypb.Empty{}, nil
}

type own struct{ shimv1.TTRPCShimService }

// Status answers with a constant.
func (own) Status(context.Context, *shimv1.StatusRequest) (*shimv1.StatusResponse, error) {
	return &shimv1.StatusResponse{State: "awake"}, nil
}
