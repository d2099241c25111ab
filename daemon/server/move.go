package server

import (
	"context"
	"errors"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/move"
	"github.com/hibernate-runtime/hibernate/daemon/node"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
)

// Mover moves workloads to other nodes. See move.Mover.
type Mover interface {
	Move(ctx context.Context, w *node.Workload, to string, within time.Duration, tell func(move.Step)) (peer.Pulled, error)
}

// Move implements the service.
func (a API) Move(ctx context.Context, req *daemonv1.MoveRequest, stream daemonv1.TTRPCDaemon_MoveServer) error {
	if a.Mover == nil {
		return errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "this node asks no other one: set peer-address, on that one, too")
	}
	key := node.Key{Namespace: req.GetNamespace(), ID: req.GetId()}
	w := a.View.Get(key)
	if w == nil {
		return errgrpc.ToGRPCf(errdefs.ErrNotFound, "workload %s", key)
	}
	p, err := a.Mover.Move(ctx, w, req.GetNode(), time.Duration(req.GetTimeoutMs())*time.Millisecond, func(s move.Step) {
		_ = stream.Send(&daemonv1.MoveResponse{Step: s.Name, TookMs: s.Took.Milliseconds(), Detail: s.Detail}) // the last one's error counts
	})
	if refused, ok := errors.AsType[*move.RefusedError](err); ok {
		return errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "%v", refused)
	}
	if err != nil {
		return errgrpc.ToGRPC(err)
	}
	return stream.Send(&daemonv1.MoveResponse{
		Moved: &daemonv1.Moved{Node: req.GetNode(), Container: p.Woken, Detail: p.Detail, Sequence: p.Sequence, Epoch: p.Epoch},
	})
}
