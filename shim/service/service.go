// Package service puts a shim's parts together: the task service, the shim's own service, the reaper, the queue of
// events for containerd and the registration with the daemon.
package service

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/pkg/sys/reaper"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/shim/control"
	"github.com/hibernate-runtime/hibernate/shim/reap"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
	"github.com/hibernate-runtime/hibernate/shim/task"
)

// Options tell what the shim's process knows of itself.
type Options struct {
	Version string
	Address string // of the shim's ttrpc socket, unix:///…
	Events  string // containerd's ttrpc socket, which takes events
	// Containerd is containerd's own socket; "" when it was not told.
	Containerd string
	Log        io.Writer // containerd's log
	Level      slog.Level
}

// New builds the services. They run until ctx ends.
func New(ctx context.Context, o Options, down shutdown.Service) (
	taskapi.TTRPCTaskService, shimv1.TTRPCShimService, error) {
	tune()
	log := slog.New(slog.NewTextHandler(o.Log, &slog.HandlerOptions{Level: o.Level}))
	children := reap.New(reaper.Default)
	go children.Run(ctx)
	namespace, _ := namespaces.Namespace(ctx)
	events, err := newForwarder(o.Events)
	if err != nil {
		return nil, nil, err
	}
	queue := newQueue(events.forward, namespace, log)
	go queue.run()
	daemon := control.NewDaemon(o.Address, o.Version, log)
	base := sandbox.Options{
		Address: o.Address, Containerd: o.Containerd, Version: o.Version, Runner: children.Runner(), Born: children, Exits: children, Publish: queue.put,
		Daemon: daemon, Log: log, Now: time.Now,
	}
	registration := &registration{ctx: ctx, daemon: daemon}
	end := func() {
		if err := leaveSocket(o.Address); err != nil {
			log.Warn("shutdown", "error", err)
		}
		down.Shutdown()
	}
	tasks := task.New(base, end, registration.changed)
	down.RegisterCallback(func(context.Context) error {
		registration.changed(nil)
		return errors.Join(queue.flush(), events.close())
	})
	return tasks, control.NewService(tasks), nil
}

// registration keeps the daemon's view in step with the shim's one workload.
type registration struct {
	ctx    context.Context
	daemon *control.Daemon
	stop   context.CancelFunc
	done   chan struct{}
}

// changed begins to register w, or ends the registration when w is nil.
func (r *registration) changed(w *sandbox.Workload) {
	if r.stop != nil {
		r.stop()
		<-r.done
		r.stop = nil
	}
	if w == nil {
		return
	}
	ctx, stop := context.WithCancel(r.ctx)
	r.stop, r.done = stop, make(chan struct{})
	go func(done chan struct{}) {
		defer close(done)
		r.daemon.Run(ctx, w.RegistrationSocket(), w)
	}(r.done)
}
