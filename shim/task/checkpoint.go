package task

import (
	"context"
	"fmt"

	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Checkpoint writes a checkpoint of the container, which needn't be awake, into the directory that containerd names. Clients
// send the options of runc's checkpoints to every runtime: exit is honoured, the others are of CRIU.
func (s *Service) Checkpoint(ctx context.Context, r *taskapi.CheckpointTaskRequest) (*emptypb.Empty, error) {
	w, err := s.of(r.GetID())
	if err != nil {
		return nil, err
	}
	if r.GetPath() == "" {
		return nil, fmt.Errorf("a checkpoint needs a directory to be written to: %w", errdefs.ErrInvalidArgument)
	}
	exit, err := s.exits(r)
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, Classify(w.Checkpoint(ctx, r.GetID(), r.GetPath(), exit))
}

// exits says whether the container shall end with its checkpoint.
func (s *Service) exits(r *taskapi.CheckpointTaskRequest) (bool, error) {
	if r.GetOptions().GetTypeUrl() == "" {
		return false, nil
	}
	v, err := typeurl.UnmarshalAny(r.GetOptions())
	if err != nil {
		return false, fmt.Errorf("%w: checkpoint options: %w", errdefs.ErrInvalidArgument, err)
	}
	o, ok := v.(*options.CheckpointOptions)
	if !ok {
		s.base.Log.Warn("checkpoint options of an unknown type are ignored", "type", r.GetOptions().GetTypeUrl())
		return false, nil
	}
	return o.GetExit(), nil
}
