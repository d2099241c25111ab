package shimtest

import (
	"context"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// service is the ttrpc side of a Shim.
type service struct{ *Shim }

func (s service) Hibernate(ctx context.Context, req *shimv1.HibernateRequest) (*shimv1.HibernateResponse, error) {
	s.mu.Lock()
	s.hibernations = append(s.hibernations, proto.CloneOf(req))
	s.mu.Unlock()
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	t, err := s.transition(ctx, "hibernate", "", req.GetReason(), "hibernating", "asleep", "slept")
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.status.Hibernations++
	s.status.ImageBytes = 24 << 20
	return &shimv1.HibernateResponse{Transition: t, ImageBytes: s.status.ImageBytes}, nil
}

func (s service) Wake(ctx context.Context, req *shimv1.WakeRequest) (*shimv1.WakeResponse, error) {
	s.mu.Lock()
	s.wakes = append(s.wakes, proto.CloneOf(req))
	s.mu.Unlock()
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	t, err := s.transition(ctx, "wake", req.GetWakeId(), req.GetReason(), "waking", "awake", "restored")
	if err != nil {
		return nil, err
	}
	return &shimv1.WakeResponse{Transition: t}, nil
}

func (s service) Status(ctx context.Context, _ *shimv1.StatusRequest) (*shimv1.StatusResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return proto.CloneOf(s.status), nil
}

func (s service) Watch(ctx context.Context, _ *shimv1.WatchRequest, stream shimv1.TTRPCShim_WatchServer) error {
	if err := s.hung(ctx); err != nil {
		return err
	}
	events := make(chan *shimv1.Event, 64)
	s.mu.Lock()
	s.watchers[events] = struct{}{}
	events <- s.event(nil)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, events)
	}()
	for {
		select {
		case event := <-events:
			if err := stream.Send(event); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		case <-s.stopped.Done():
			return nil
		}
	}
}

func (s service) Activity(ctx context.Context, _ *shimv1.ActivityRequest) (*shimv1.ActivityResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.samples++
	if s.unmeasured != nil {
		return nil, errgrpc.ToGRPC(s.unmeasured)
	}
	return proto.CloneOf(s.activity), nil
}

func (s service) EndSleeper(ctx context.Context, req *shimv1.EndSleeperRequest) (*shimv1.EndSleeperResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.status.GetState() != "asleep" || s.status.GetStateSinceUnixMs() != req.GetAsleepSinceUnixMs() {
		return nil, errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "it has been woken")
	}
	s.ends = append(s.ends, req)
	return &shimv1.EndSleeperResponse{}, nil
}

func (s service) Fork(ctx context.Context, req *shimv1.ForkRequest) (*shimv1.ForkResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	for _, name := range req.GetIdentities() {
		if name == Taken {
			return nil, errgrpc.ToGRPCf(errdefs.ErrAlreadyExists, "%s is a workload already", name)
		}
	}
	return &shimv1.ForkResponse{Bytes: 200 << 20, FrozenMs: 120, Namespace: s.Namespace, PodNamespace: "shop"}, nil
}

// Taken is an identity that Fork refuses.
const Taken = "taken"

func (s service) Fence(ctx context.Context, req *shimv1.FenceRequest) (*shimv1.FenceResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fences = append(s.fences, req)
	return &shimv1.FenceResponse{}, nil
}

// exported is what ExportRootfs writes in place of an archive.
const exported = "an archive\n"

func (s service) ExportRootfs(ctx context.Context, req *shimv1.ExportRootfsRequest) (*shimv1.ExportRootfsResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	return &shimv1.ExportRootfsResponse{}, os.WriteFile(req.GetPath(), []byte(exported), 0)
}

func (s service) Lease(ctx context.Context, req *shimv1.LeaseRequest) (*shimv1.LeaseResponse, error) {
	if err := s.hung(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	leases := slices.DeleteFunc(s.activity.Leases, func(l *shimv1.LeaseInfo) bool { return l.GetName() == req.GetName() })
	if req.GetTtlMs() > 0 {
		leases = append(leases, &shimv1.LeaseInfo{Name: req.GetName(), ExpiresUnixMs: time.Now().UnixMilli() + req.GetTtlMs()})
	}
	s.activity.Leases = leases
	return &shimv1.LeaseResponse{Leases: slices.Clone(leases)}, nil
}
