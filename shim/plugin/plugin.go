// Package plugin puts the shim's services on its one ttrpc server.
//
// containerd's shim library builds the server from plugins. Register adds one whose instance serves
//
//	containerd.task.v3.Task   containerd 2.x
//	containerd.task.v2.Task   containerd 1.x, and any that was answered with version 2
//	hibernate.shim.v1.Shim    our own
//
// The two task services are one: their messages are the same bytes under two package names.
package plugin

import (
	"context"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/v2/pkg/shutdown"
	"github.com/containerd/containerd/v2/plugins"
	"github.com/containerd/plugin"
	"github.com/containerd/plugin/registry"
	"github.com/containerd/ttrpc"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Constructor makes the services when the shim's daemon starts. ctx ends when the shim shuts down; down ends
// the shim, and calls back before it is gone. An error ends the shim.
type Constructor func(ctx context.Context, down shutdown.Service) (
	taskapi.TTRPCTaskService, shimv1.TTRPCShimService, error)

// Register adds the services to containerd's plugin registry. To be called once, before the shim runs.
func Register(construct Constructor) {
	registry.Register(&plugin.Registration{
		Type:     plugins.TTRPCPlugin,
		ID:       "hibernate",
		Requires: []plugin.Type{plugins.InternalPlugin},
		InitFn: func(ic *plugin.InitContext) (any, error) {
			down, err := get[shutdown.Service](ic, plugins.InternalPlugin, "shutdown")
			if err != nil {
				return nil, err
			}
			task, own, err := construct(ic.Context, down)
			if err != nil {
				return nil, fmt.Errorf("start the shim's services: %w", err)
			}
			return &services{task: task, own: own}, nil
		},
	})
}

func get[T any](ic *plugin.InitContext, kind plugin.Type, id string) (T, error) {
	var none T
	found, err := ic.GetByID(kind, id)
	if err != nil {
		return none, fmt.Errorf("find the shim's %s: %w", id, err)
	}
	instance, ok := found.(T)
	if !ok {
		return none, fmt.Errorf("the shim's %s is a %T", id, found)
	}
	return instance, nil
}

// services is the plugin's instance.
type services struct {
	task taskapi.TTRPCTaskService
	own  shimv1.TTRPCShimService
}

// RegisterTTRPC adds the services to the server.
func (s *services) RegisterTTRPC(server *ttrpc.Server) error {
	taskapi.RegisterTTRPCTaskService(server, s.task)
	registerTaskV2(server, s.task)
	shimv1.RegisterTTRPCShimService(server, s.own)
	return nil
}

// UnaryServerInterceptor guards every call.
func (s *services) UnaryServerInterceptor() ttrpc.UnaryServerInterceptor { return guard }
