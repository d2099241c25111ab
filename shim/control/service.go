// Package control is the shim's own face: the service that the daemon and hibernatectl call, and the shim's
// registration with the daemon.
package control

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
	"github.com/hibernate-runtime/hibernate/shim/task"
)

// Workloads finds the shim's workload. An error means that there is none.
type Workloads interface {
	Workload() (*sandbox.Workload, error)
}

// Service implements hibernate.shim.v1.Shim.
type Service struct{ workloads Workloads }

// NewService returns the service over the workload that w finds.
func NewService(w Workloads) *Service { return &Service{workloads: w} }

// Hibernate puts the workload to sleep.
func (s *Service) Hibernate(ctx context.Context, r *shimv1.HibernateRequest) (*shimv1.HibernateResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	why := r.GetReason()
	if why == "" {
		why = sandbox.ByRequest
	}
	t, err := w.Hibernate(ctx, sandbox.Ask{Why: why, Manual: r.GetManual(), Urgent: r.GetUrgent(), Judged: r.JudgedPackets})
	if err != nil {
		return nil, task.Classify(err)
	}
	return &shimv1.HibernateResponse{Transition: t, ImageBytes: w.Status().GetImageBytes()}, nil
}

// Wake wakes the workload.
func (s *Service) Wake(ctx context.Context, r *shimv1.WakeRequest) (*shimv1.WakeResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	why := r.GetReason()
	if why == "" {
		why = sandbox.ByRequest
	}
	t, err := wake(ctx, w, why, r)
	if err != nil {
		return nil, task.Classify(err)
	}
	return &shimv1.WakeResponse{Transition: t}, nil
}

func wake(ctx context.Context, w *sandbox.Workload, why string, r *shimv1.WakeRequest) (*shimv1.Transition, error) {
	if r.GetFrom() != 0 || r.GetStaleVolumes() {
		return w.WakeFrom(ctx, r.GetFrom(), r.GetStaleVolumes(), r.GetWakeId())
	}
	return w.Wake(ctx, why, r.GetWakeId())
}

// Status answers at once.
func (s *Service) Status(context.Context, *shimv1.StatusRequest) (*shimv1.StatusResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	return w.Status(), nil
}

// Watch streams changes.
func (s *Service) Watch(ctx context.Context, _ *shimv1.WatchRequest, stream shimv1.TTRPCShim_WatchServer) error {
	w, err := s.workloads.Workload()
	if err != nil {
		return err
	}
	return w.Watch(ctx, stream.Send)
}

// Activity answers what idleness is judged by.
func (s *Service) Activity(ctx context.Context, _ *shimv1.ActivityRequest) (*shimv1.ActivityResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	a, err := w.Activity(ctx)
	return a, task.Classify(err)
}

// Lease keeps the workload awake.
func (s *Service) Lease(_ context.Context, r *shimv1.LeaseRequest) (*shimv1.LeaseResponse, error) {
	w, err := s.workloads.Workload()
	switch {
	case err != nil:
		return nil, err
	case r.GetName() == "":
		return nil, fmt.Errorf("a lease needs a name: %w", errdefs.ErrInvalidArgument)
	case r.GetTtlMs() < 0:
		return nil, fmt.Errorf("a lease's ttl can't be negative: %w", errdefs.ErrInvalidArgument)
	}
	return &shimv1.LeaseResponse{Leases: w.Lease(r.GetName(), time.Duration(r.GetTtlMs())*time.Millisecond)}, nil
}

// ExportRootfs writes the container's changes of its root file system, and wakes it for that.
func (s *Service) ExportRootfs(ctx context.Context, r *shimv1.ExportRootfsRequest) (*shimv1.ExportRootfsResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	t, err := w.ExportRootfs(ctx, r.GetPath())
	if err != nil {
		return nil, task.Classify(err)
	}
	return &shimv1.ExportRootfsResponse{LastWake: t}, nil
}

// EndSleeper ends a workload that nobody has woken.
func (s *Service) EndSleeper(ctx context.Context, r *shimv1.EndSleeperRequest) (*shimv1.EndSleeperResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	if err := w.EndSleeper(ctx, time.UnixMilli(r.GetAsleepSinceUnixMs())); err != nil {
		return nil, task.Classify(err)
	}
	return &shimv1.EndSleeperResponse{}, nil
}

// Fork makes workloads of what this one is now.
func (s *Service) Fork(ctx context.Context, r *shimv1.ForkRequest) (*shimv1.ForkResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	f, err := w.Fork(ctx, r.GetIdentities())
	if err != nil {
		return nil, task.Classify(err)
	}
	return &shimv1.ForkResponse{
		Sequence: f.Sequence, Bytes: f.Bytes, FrozenMs: f.Frozen.Milliseconds(), Namespace: f.Namespace, PodNamespace: f.PodNamespace,
	}, nil
}

// Fence ends a copy that another node's has overtaken.
func (s *Service) Fence(ctx context.Context, r *shimv1.FenceRequest) (*shimv1.FenceResponse, error) {
	w, err := s.workloads.Workload()
	if err != nil {
		return nil, err
	}
	why := r.GetReason()
	if why == "" {
		why = "another node runs it"
	}
	if err := w.Fence(ctx, r.GetEpoch(), why); err != nil {
		return nil, task.Classify(err)
	}
	return &shimv1.FenceResponse{}, nil
}

var _ shimv1.TTRPCShimService = (*Service)(nil)
