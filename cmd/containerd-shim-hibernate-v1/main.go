// Command containerd-shim-hibernate-v1 is the shim of the runtime io.containerd.hibernate.v1. containerd starts it; a
// person has no use for it but -v.
package main

import (
	"context"
	"os"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/internal/version"
	"github.com/hibernate-runtime/hibernate/shim/manager"
	"github.com/hibernate-runtime/hibernate/shim/plugin"
	"github.com/hibernate-runtime/hibernate/shim/reap"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
	"github.com/hibernate-runtime/hibernate/shim/service"
)

func main() {
	plugin.Register(services)
	os.Exit(manager.Main(manager.Options{
		Runtime: "io.containerd.hibernate.v1",
		Version: version.Version,
		Cleanup: cleanup,
	}))
}

// services makes those of the daemon.
func services(ctx context.Context, down shutdown.Service) (
	taskapi.TTRPCTaskService, shimv1.TTRPCShimService, error,
) {
	self, err := manager.Know()
	if err != nil {
		return nil, nil, err
	}
	return service.New(ctx, service.Options{
		Version: version.Version, Address: self.Address, Events: self.Events, Containerd: self.Containerd,
		Log: self.Log, Level: self.Level,
	}, down)
}

// cleanup is the work of `delete`.
func cleanup(ctx context.Context, bundle string) (status int, at time.Time, pid int, err error) {
	children := reap.New(reaper.Default)
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { defer close(done); children.Run(ctx) }()
	defer func() { stop(); <-done }()
	left, err := sandbox.Cleanup(ctx, bundle, children.Runner())
	if left.Warning != nil {
		_, _ = os.Stderr.WriteString(left.Warning.Error() + "\n") // containerd logs it
	}
	return int(left.Status), left.At, left.Pid, err
}
