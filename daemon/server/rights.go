package server

import (
	"context"
	"errors"

	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/hibernate-runtime/hibernate/api/pages"
	"github.com/hibernate-runtime/hibernate/api/rights"
	rightsv1 "github.com/hibernate-runtime/hibernate/api/rights/v1"
	"github.com/hibernate-runtime/hibernate/daemon/containerd"
	"github.com/hibernate-runtime/hibernate/daemon/fence"
	"github.com/hibernate-runtime/hibernate/daemon/peer"
	"github.com/hibernate-runtime/hibernate/daemon/upload"
	"github.com/hibernate-runtime/hibernate/snapshot"
	"github.com/hibernate-runtime/hibernate/snapshot/durable"
	"github.com/hibernate-runtime/hibernate/snapshot/store"
)

// Claims are the node's on workloads with an identity.
type Claims interface {
	Claim(ctx context.Context, w pages.Workload, local upload.Local) (upload.Right, error)
	Unused(ctx context.Context, w pages.Workload, grant string) error
}

// Rights implements the service that shims ask for the right to run a workload.
type Rights struct {
	Claims Claims // nil: there is no durable tier
}

var _ rightsv1.TTRPCRightsService = Rights{}

// Claim implements the service. What is refused is told by its class.
func (r Rights) Claim(ctx context.Context, req *rightsv1.ClaimRequest) (*rightsv1.ClaimResponse, error) {
	if r.Claims == nil {
		return &rightsv1.ClaimResponse{Class: rights.NoStore, Message: "no store is configured: the identity is this node's own"}, nil
	}
	right, err := r.Claims.Claim(ctx, workloadOf(req.GetWorkload()),
		upload.Local{Sequence: req.GetLocalSequence(), Epoch: req.GetLocalEpoch(), Grant: req.GetGrant()})
	if err != nil {
		return &rightsv1.ClaimResponse{Class: rightsClass(err), Message: err.Error()}, nil
	}
	resp := &rightsv1.ClaimResponse{
		Epoch: right.Epoch, Former: right.Former, Whole: right.Whole, Unconfirmed: right.Unconfirmed, Leased: right.Leased,
		Received: right.Received, ReceivedFrom: right.From,
	}
	for _, g := range right.Generations {
		resp.Generations = append(resp.Generations, &rightsv1.Generation{Sequence: g.Sequence, Epoch: g.Epoch})
	}
	return resp, nil
}

// Unused implements the service.
func (r Rights) Unused(ctx context.Context, req *rightsv1.UnusedRequest) (*rightsv1.UnusedResponse, error) {
	if r.Claims == nil {
		return &rightsv1.UnusedResponse{}, nil
	}
	if err := r.Claims.Unused(ctx, workloadOf(req.GetWorkload()), req.GetGrant()); err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &rightsv1.UnusedResponse{}, nil
}

// Rootfs implements the service. It needs no store.
func (r Rights) Rootfs(ctx context.Context, req *rightsv1.RootfsRequest) (*rightsv1.RootfsResponse, error) {
	c, err := containerd.Get(ctx, req.GetContainerd(), req.GetNamespace(), req.GetId())
	resp := &rightsv1.RootfsResponse{Image: c.Image}
	if err == nil && c.SnapshotKey != "" {
		resp.ChainId, err = containerd.Parent(ctx, req.GetContainerd(), req.GetNamespace(), c.Snapshotter, c.SnapshotKey)
	}
	if err != nil {
		resp.Problem = err.Error()
	}
	return resp, nil
}

func workloadOf(w *rightsv1.Workload) pages.Workload {
	return pages.Workload{Namespace: w.GetNamespace(), ID: w.GetId(), Identity: w.GetIdentity()}
}

// rightsClass of an error. What is none of a kind is worth another try.
func rightsClass(err error) string {
	if _, stops := errors.AsType[*peer.IdentityError](err); stops {
		return rights.Refused
	}
	for _, k := range []struct {
		is    error
		class string
	}{
		{upload.ErrNoFence, rights.NoStore}, {durable.ErrOwned, rights.Owned}, {upload.ErrMoving, rights.Owned}, {fence.ErrRival, rights.Refused}, {upload.ErrInvalid, rights.Refused},
		{durable.ErrDestroyed, rights.Refused}, {durable.ErrRolledBack, rights.Refused}, {durable.ErrWrongKey, rights.Refused}, {durable.ErrNoKey, rights.Refused},
		{durable.ErrForeign, rights.Refused}, {store.ErrRefused, rights.Refused}, {snapshot.ErrVersion, rights.Refused}, {snapshot.ErrCorrupt, rights.Refused},
	} {
		if errors.Is(err, k.is) {
			return k.class
		}
	}
	return rights.Unavailable
}
