package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/ttrpc"
)

// An echo is an idle process that answers State with nothing, asked in the same way and at the same time as a shim: what
// it takes is what this machine and the client take of a busy shim's figure.
type echo struct {
	cmd    *exec.Cmd
	socket string
}

// idleTask answers at once.
type idleTask struct{ taskapi.TTRPCTaskService }

func (idleTask) State(context.Context, *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	return &taskapi.StateResponse{}, nil
}

// echoEnv makes a process of this program an echo at the socket that it names.
const echoEnv = "HIBERNATE_BENCH_ECHO"

// beEcho serves until it is killed.
func beEcho(socket string) int {
	err := serveEcho(socket)
	fmt.Fprintln(os.Stderr, "bench: idle process:", err)
	return 1
}

func serveEcho(socket string) error {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		return err
	}
	taskapi.RegisterTTRPCTaskService(server, idleTask{})
	return server.Serve(context.Background(), l)
}

// startEcho starts this program again, as the process that only answers.
func startEcho(dir string) (*echo, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	e := &echo{socket: filepath.Join(dir, "echo.sock")}
	e.cmd = exec.Command(self)
	e.cmd.Env, e.cmd.Stderr = append(os.Environ(), echoEnv+"="+e.socket), os.Stderr
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := e.cmd.Start(); err != nil {
		return nil, fmt.Errorf("idle process: %w", err)
	}
	return e, nil
}

// dial connects as soon as the process listens.
func (e *echo) dial(ctx context.Context) (*ttrpc.Client, error) {
	for {
		conn, err := net.Dial("unix", e.socket)
		if err == nil {
			return ttrpc.NewClient(conn), nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(context.Cause(ctx), err)
		case <-time.After(time.Millisecond):
		}
	}
}

func (e *echo) close() error {
	err := e.cmd.Process.Kill()
	_ = e.cmd.Wait() // killed
	return err
}
