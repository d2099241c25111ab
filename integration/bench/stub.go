package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// stubName is the name by which this program is a runtime whose containers do nothing and end as soon as they are started:
// what is left of `ctr run` then is ctr's and containerd's own, and the two starts of a shim's program.
const stubName = "containerd-shim-stub-v1"

// installStub puts the runtime into dir and returns its path.
func installStub(dir string) (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, stubName)
	return path, os.Symlink(self, path)
}

// beStub is the program as containerd calls it: `start` makes a server and prints its address.
func beStub(args []string) int {
	var err error
	switch last := args[len(args)-1]; last {
	case "start":
		err = startStub()
	case "serve":
		err = serveStub()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func startStub() error {
	socket := filepath.Join(os.TempDir(), fmt.Sprintf("stub-%d.sock", os.Getpid()))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	f, err := l.File()
	if err != nil {
		return err
	}
	server := exec.Command(os.Args[0], socket, "serve")
	server.ExtraFiles = []*os.File{f}
	server.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := server.Start(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]any{"version": 3, "address": "unix://" + socket, "protocol": "ttrpc"})
}

// serveStub ends with the container, or after a minute.
func serveStub() error {
	time.AfterFunc(time.Minute, func() { os.Exit(1) })
	l, err := net.FileListener(os.NewFile(3, "socket"))
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	taskapi.RegisterTTRPCTaskService(server, &stubTask{started: make(chan struct{})})
	return server.Serve(context.Background(), l)
}

// stubTask is a container.
type stubTask struct {
	taskapi.TTRPCTaskService
	started chan struct{}
}

var stubPid = uint32(os.Getpid())

func (s *stubTask) Create(context.Context, *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	return &taskapi.CreateTaskResponse{Pid: stubPid}, nil
}

func (s *stubTask) Start(context.Context, *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	close(s.started)
	return &taskapi.StartResponse{Pid: stubPid}, nil
}

func (s *stubTask) Wait(context.Context, *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	<-s.started
	return &taskapi.WaitResponse{ExitedAt: timestamppb.Now()}, nil
}

func (s *stubTask) State(_ context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	status := tasktypes.Status_CREATED
	select {
	case <-s.started:
		status = tasktypes.Status_STOPPED
	default:
	}
	return &taskapi.StateResponse{ID: r.GetID(), Pid: stubPid, Status: status, ExitedAt: timestamppb.Now()}, nil
}

func (s *stubTask) Connect(context.Context, *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	return &taskapi.ConnectResponse{ShimPid: stubPid, TaskPid: stubPid}, nil
}

func (s *stubTask) Pids(context.Context, *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	return &taskapi.PidsResponse{Processes: []*tasktypes.ProcessInfo{{Pid: stubPid}}}, nil
}

func (s *stubTask) CloseIO(context.Context, *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (s *stubTask) Kill(context.Context, *taskapi.KillRequest) (*emptypb.Empty, error) {
	return &emptypb.Empty{}, nil
}

func (s *stubTask) Delete(context.Context, *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	return &taskapi.DeleteResponse{Pid: stubPid, ExitedAt: timestamppb.Now()}, nil
}

func (s *stubTask) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	_ = os.Remove(os.Args[1])
	time.AfterFunc(time.Millisecond, func() { os.Exit(0) })
	return &emptypb.Empty{}, nil
}
