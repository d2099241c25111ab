// Package server answers for the daemon: the ttrpc API on <run-dir>/api.sock, and /metrics and /healthz over HTTP.
//
// What is told of workloads is answered from memory, so no request waits for a shim. What is told of the store is read from it.
package server

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/proto"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
	"github.com/hibernate-runtime/hibernate/daemon/idle"
	"github.com/hibernate-runtime/hibernate/daemon/keeper"
	"github.com/hibernate-runtime/hibernate/daemon/node"
)

// View is the set of workloads.
type View interface {
	List() []*node.Workload
	Get(node.Key) *node.Workload
}

// Judge tells what the idle policy thinks of a workload.
type Judge interface {
	Judgement(w *node.Workload) (keeper.Judgement, bool)
	// Broken tells why its activity can't be measured; "" when it can.
	Broken(w *node.Workload) string
}

// Queue tells of wakes that wait for their turn.
type Queue interface {
	// Waits says what a workload's wake waits for; "" when none waits.
	Waits(key node.Key) string
}

// History tells a workload's last wakes.
type History interface {
	// Of are the newest first. They must not be changed.
	Of(key node.Key) []*shimv1.Transition
}

// API implements the daemon's ttrpc service.
type API struct {
	View    View
	Judge   Judge
	Queue   Queue
	History History
	Log     EventLog // nil: no log of transitions is kept
	Store   Store    // nil: there is no durable tier
	Mover   Mover    // nil: nothing can be moved to other nodes
	Facts   Facts    // nil: nothing is known of the node
	Place   Place
	Build   string // version of this build
	Started time.Time
}

var _ daemonv1.TTRPCDaemonService = API{}

// List implements the service, in the order of the workloads' keys.
func (a API) List(context.Context, *daemonv1.ListRequest) (*daemonv1.ListResponse, error) {
	resp := &daemonv1.ListResponse{}
	for _, w := range a.View.List() {
		resp.Workloads = append(resp.Workloads, a.workload(w))
	}
	return resp, nil
}

// WhyAwake implements the service.
func (a API) WhyAwake(_ context.Context, req *daemonv1.WhyAwakeRequest) (*daemonv1.WhyAwakeResponse, error) {
	key := node.Key{Namespace: req.GetNamespace(), ID: req.GetId()}
	w := a.View.Get(key)
	if w == nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "workload %s", key)
	}
	listed := a.workload(w)
	resp := &daemonv1.WhyAwakeResponse{State: listed.GetStatus().GetState(), Idle: listed.GetIdle()}
	if why := listed.GetUnreachable(); why != "" {
		resp.Reasons = append(resp.Reasons, &shimv1.Reason{Code: "unreachable", Detail: "the shim does not answer: " + why})
	}
	if waits := listed.GetWakeWaits(); waits != "" {
		resp.Reasons = append(resp.Reasons, &shimv1.Reason{Code: "wake-queue", Detail: "its wake waits for " + waits})
	}
	j, ok := a.Judge.Judgement(w)
	if why := a.Judge.Broken(w); why != "" && !has(j, idle.Meter) {
		resp.Reasons = append(resp.Reasons, &shimv1.Reason{Code: string(idle.Meter), Detail: why})
	}
	if ok {
		resp.Reasons = append(resp.Reasons, reasons(j)...)
	} else if resp.GetState() == idle.Awake {
		resp.Reasons = append(resp.Reasons, &shimv1.Reason{Code: "unwatched", Detail: "hibernated has only just found it"})
	}
	return resp, nil
}

// Wakes implements the service.
func (a API) Wakes(_ context.Context, req *daemonv1.WakesRequest) (*daemonv1.WakesResponse, error) {
	key := node.Key{Namespace: req.GetNamespace(), ID: req.GetId()}
	if a.View.Get(key) == nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrNotFound, "workload %s", key)
	}
	return &daemonv1.WakesResponse{Wakes: a.History.Of(key)}, nil
}

// Version implements the service.
func (a API) Version(context.Context, *daemonv1.VersionRequest) (*daemonv1.VersionResponse, error) {
	return &daemonv1.VersionResponse{Version: a.Build, StartedUnixMs: a.Started.UnixMilli(), Store: a.condition()}, nil
}

// workload joins what the shim said with what the keeper measured since.
func (a API) workload(w *node.Workload) *daemonv1.Workload {
	status := proto.CloneOf(w.Status())
	if status == nil {
		status = &shimv1.StatusResponse{State: "unknown"}
	}
	status.Namespace, status.Id = w.Namespace, w.ID
	out := &daemonv1.Workload{Status: status, Idle: &daemonv1.Idle{SleepsInMs: -1}}
	if err := w.Err(); err != nil {
		out.Unreachable = err.Error()
	}
	out.WakeWaits, out.Copies = a.Queue.Waits(w.Key), a.copies(w)
	held, _ := w.ProxyUse()
	if j, ok := a.Judge.Judgement(w); ok {
		status.MemoryBytes = j.Memory
		out.Idle = idleOf(j, time.Now())
		status.Blockers = blockers(j)
	}
	out.Idle.HeldConnections = uint32(held)
	return out
}
