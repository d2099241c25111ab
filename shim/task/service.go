// Package task is containerd's task service over one workload: a container, or a pod.
//
// A sleeping task is a running one to containerd: its pid is the holder's, Pids is never empty, Wait blocks, Stats
// answers from the cgroup that lives through sleep, and State never waits for a transition. Exec and signals wake.
package task

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/containerd/containerd/api/events"
	taskapi "github.com/containerd/containerd/api/runtime/task/v3"
	tasktypes "github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/runtime"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/containerd/v2/pkg/protobuf"
	"github.com/containerd/errdefs"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/hibernate-runtime/hibernate/shim/lifecycle"
	"github.com/hibernate-runtime/hibernate/shim/options"
	"github.com/hibernate-runtime/hibernate/shim/sandbox"
	"github.com/hibernate-runtime/hibernate/shim/stdio"
)

// Service implements containerd.task.v3.Task. Make one with New.
type Service struct {
	base     sandbox.Options // of every workload; the container's own fields are set at Create
	shutdown func()
	changed  func(*sandbox.Workload)

	creating sync.Mutex // one Create at a time
	workload atomic.Pointer[sandbox.Workload]
}

// New returns the service of a shim that has no workload yet. shutdown is called when the last container is gone;
// changed is told the workload when Create has made one, and nil when it is deleted.
func New(base sandbox.Options, shutdown func(), changed func(*sandbox.Workload)) *Service {
	return &Service{base: base, shutdown: shutdown, changed: changed}
}

// Workload returns the shim's workload, or an error of class NotFound before Create and after Delete.
func (s *Service) Workload() (*sandbox.Workload, error) {
	if w := s.workload.Load(); w != nil {
		return w, nil
	}
	return nil, fmt.Errorf("the shim has no container: %w", errdefs.ErrNotFound)
}

var states = map[lifecycle.Container]tasktypes.Status{
	lifecycle.Created: tasktypes.Status_CREATED, lifecycle.Running: tasktypes.Status_RUNNING,
	lifecycle.Paused: tasktypes.Status_PAUSED, lifecycle.Stopped: tasktypes.Status_STOPPED,
	lifecycle.Deleted: tasktypes.Status_STOPPED,
}

// Create makes the workload.
func (s *Service) Create(ctx context.Context, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	s.creating.Lock()
	defer s.creating.Unlock()
	if w := s.workload.Load(); w != nil {
		return s.add(ctx, w, r)
	}
	chosen, ignored, err := options.Resolve(r.GetBundle(), r.GetOptions())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	o := s.base
	if ignored != "" {
		o.Log.Warn("options of a type that is not this runtime's are ignored", "type", ignored)
	}
	if o.Namespace, err = namespaces.NamespaceRequired(ctx); err != nil {
		return nil, err
	}
	o.ID, o.Bundle = r.GetID(), r.GetBundle()
	o.Log = o.Log.With(slog.String("namespace", o.Namespace), slog.String("id", o.ID))
	w, err := sandbox.Create(ctx, o, sandbox.CreateRequest{
		Rootfs: r.GetRootfs(), Terminal: r.GetTerminal(), Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(),
		Checkpoint: r.GetCheckpoint(), ConfigPath: chosen.ConfigPath, ConfigBody: chosen.ConfigBody,
	})
	if err != nil {
		return nil, Classify(err)
	}
	s.workload.Store(w)
	s.changed(w)
	return s.created(w, r), nil
}

// add makes a container of the pod whose sandbox there is.
func (s *Service) add(ctx context.Context, w *sandbox.Workload, r *taskapi.CreateTaskRequest) (*taskapi.CreateTaskResponse, error) {
	err := w.AddContainer(ctx, r.GetID(), r.GetBundle(), sandbox.CreateRequest{
		Rootfs: r.GetRootfs(), Terminal: r.GetTerminal(), Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Checkpoint: r.GetCheckpoint(),
	})
	if err != nil {
		return nil, Classify(err)
	}
	return s.created(w, r), nil
}

// created tells of a container.
func (s *Service) created(w *sandbox.Workload, r *taskapi.CreateTaskRequest) *taskapi.CreateTaskResponse {
	pid := uint32(w.Pids()[0])
	s.base.Publish(runtime.TaskCreateEventTopic, &events.TaskCreate{
		ContainerID: r.GetID(), Bundle: r.GetBundle(), Rootfs: r.GetRootfs(), Checkpoint: r.GetCheckpoint(), Pid: pid,
		IO: &events.TaskIO{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()},
	})
	return &taskapi.CreateTaskResponse{Pid: pid}
}

// Start starts the container, or an exec in it.
func (s *Service) Start(ctx context.Context, r *taskapi.StartRequest) (*taskapi.StartResponse, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	pid := uint32(w.Pids()[0])
	if r.GetExecID() != "" {
		return &taskapi.StartResponse{Pid: pid}, Classify(w.StartExec(ctx, r.GetID(), r.GetExecID()))
	}
	if _, err := w.Process(r.GetID(), ""); err != nil {
		return nil, Classify(err)
	}
	if err := w.StartContainer(ctx, r.GetID()); err != nil {
		return nil, Classify(err)
	}
	return &taskapi.StartResponse{Pid: pid}, nil
}

// State answers at once, in every state and during transitions.
func (s *Service) State(_ context.Context, r *taskapi.StateRequest) (*taskapi.StateResponse, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	p, err := w.Process(r.GetID(), r.GetExecID())
	if err != nil {
		return nil, Classify(err)
	}
	response := &taskapi.StateResponse{
		ID: r.GetID(), Bundle: p.Bundle, Pid: uint32(p.Pid), Status: states[p.State], Stdin: p.Stdio.Stdin,
		Stdout: p.Stdio.Stdout, Stderr: p.Stdio.Stderr, Terminal: p.Terminal, ExitStatus: p.Exit.Status, ExecID: r.GetExecID(),
	}
	if !p.Exit.At.IsZero() {
		response.ExitedAt = protobuf.ToTimestamp(p.Exit.At)
	}
	return response, nil
}

// Delete removes the container, or an exec that has ended.
func (s *Service) Delete(ctx context.Context, r *taskapi.DeleteRequest) (*taskapi.DeleteResponse, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	pid := uint32(w.Pids()[0])
	var exit sandbox.Exit
	if r.GetExecID() != "" {
		exit, err = w.DeleteExec(r.GetID(), r.GetExecID())
	} else {
		exit, err = w.DeleteContainer(ctx, r.GetID())
	}
	if err != nil {
		return nil, Classify(err)
	}
	response := &taskapi.DeleteResponse{Pid: pid, ExitStatus: exit.Status, ExitedAt: protobuf.ToTimestamp(exit.At)}
	if r.GetExecID() == "" {
		if w.Gone() {
			s.workload.Store(nil)
		}
		if r.GetID() == w.ID() {
			s.changed(nil)
		}
		s.base.Publish(runtime.TaskDeleteEventTopic, &events.TaskDelete{
			ContainerID: r.GetID(), ID: r.GetID(), Pid: pid, ExitStatus: exit.Status, ExitedAt: response.ExitedAt,
		})
	}
	return response, nil
}

// Pids names at least the holder: an empty list makes containerd kill the shim as leaked.
func (s *Service) Pids(context.Context, *taskapi.PidsRequest) (*taskapi.PidsResponse, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	response := &taskapi.PidsResponse{}
	for _, pid := range w.Pids() {
		response.Processes = append(response.Processes, &tasktypes.ProcessInfo{Pid: uint32(pid)})
	}
	return response, nil
}

// Pause stops the container at a user's wish; a paused one doesn't sleep.
func (s *Service) Pause(ctx context.Context, r *taskapi.PauseRequest) (*emptypb.Empty, error) {
	return s.event(r.GetID(), func(w *sandbox.Workload) error { return w.Pause(ctx, r.GetID()) },
		runtime.TaskPausedEventTopic, &events.TaskPaused{ContainerID: r.GetID()})
}

// Resume lets a paused container go on.
func (s *Service) Resume(ctx context.Context, r *taskapi.ResumeRequest) (*emptypb.Empty, error) {
	return s.event(r.GetID(), func(w *sandbox.Workload) error { return w.Resume(ctx, r.GetID()) },
		runtime.TaskResumedEventTopic, &events.TaskResumed{ContainerID: r.GetID()})
}

func (s *Service) event(id string, act func(*sandbox.Workload) error, topic string, event any) (*emptypb.Empty, error) {
	w, err := s.of(id)
	if err != nil {
		return nil, err
	}
	if err := act(w); err != nil {
		return nil, Classify(err)
	}
	s.base.Publish(topic, event)
	return &emptypb.Empty{}, nil
}

// of returns the workload when it has a container of that id.
func (s *Service) of(id string) (*sandbox.Workload, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	_, err = w.Process(id, "")
	return w, Classify(err)
}

// Kill signals the container or an exec.
func (s *Service) Kill(ctx context.Context, r *taskapi.KillRequest) (*emptypb.Empty, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, Classify(w.Kill(ctx, r.GetID(), r.GetExecID(), syscall.Signal(r.GetSignal()), r.GetAll()))
}

// Exec registers a process; Start runs it, and wakes.
func (s *Service) Exec(ctx context.Context, r *taskapi.ExecProcessRequest) (*emptypb.Empty, error) {
	w, err := s.of(r.GetID())
	if err != nil {
		return nil, err
	}
	config := stdio.Config{Stdin: r.GetStdin(), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Terminal: r.GetTerminal()}
	return &emptypb.Empty{}, Classify(w.AddExec(ctx, r.GetID(), r.GetExecID(), config, r.GetSpec().GetValue()))
}

// ResizePty sets a terminal's size.
func (s *Service) ResizePty(_ context.Context, r *taskapi.ResizePtyRequest) (*emptypb.Empty, error) {
	w, err := s.of(r.GetID())
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, Classify(w.Resize(r.GetID(), r.GetExecID(), uint16(r.GetWidth()), uint16(r.GetHeight())))
}

// CloseIO ends a standard input.
func (s *Service) CloseIO(_ context.Context, r *taskapi.CloseIORequest) (*emptypb.Empty, error) {
	w, err := s.of(r.GetID())
	if err != nil || !r.GetStdin() {
		return &emptypb.Empty{}, err
	}
	return &emptypb.Empty{}, Classify(w.CloseStdin(r.GetID(), r.GetExecID()))
}

// Update sets limits, also those of a sleeper.
func (s *Service) Update(_ context.Context, r *taskapi.UpdateTaskRequest) (*emptypb.Empty, error) {
	w, err := s.of(r.GetID())
	if err != nil {
		return nil, err
	}
	v, err := typeurl.UnmarshalAny(r.GetResources())
	if err != nil {
		return nil, fmt.Errorf("%w: resources: %w", errdefs.ErrInvalidArgument, err)
	}
	resources, ok := v.(*specs.LinuxResources)
	if !ok {
		return nil, fmt.Errorf("resources are a %T, not Linux resources: %w", v, errdefs.ErrInvalidArgument)
	}
	return &emptypb.Empty{}, Classify(w.Update(r.GetID(), resources))
}

// Wait returns when the process has ended, through any number of sleeps.
func (s *Service) Wait(ctx context.Context, r *taskapi.WaitRequest) (*taskapi.WaitResponse, error) {
	w, err := s.Workload()
	if err != nil {
		return nil, err
	}
	exit, err := w.Wait(ctx, r.GetID(), r.GetExecID())
	if err != nil {
		return nil, Classify(err)
	}
	return &taskapi.WaitResponse{ExitStatus: exit.Status, ExitedAt: protobuf.ToTimestamp(exit.At)}, nil
}

// Stats are the cgroup's. They never wake.
func (s *Service) Stats(_ context.Context, r *taskapi.StatsRequest) (*taskapi.StatsResponse, error) {
	w, err := s.of(r.GetID())
	if err != nil {
		return nil, err
	}
	metrics, err := w.Metrics(r.GetID())
	if err != nil {
		return nil, Classify(err)
	}
	stats, err := typeurl.MarshalAnyToProto(metrics)
	if err != nil {
		return nil, err
	}
	return &taskapi.StatsResponse{Stats: stats}, nil
}

// Connect answers at once: containerd allows a restart five seconds for all of a shim.
func (s *Service) Connect(_ context.Context, r *taskapi.ConnectRequest) (*taskapi.ConnectResponse, error) {
	response := &taskapi.ConnectResponse{ShimPid: uint32(os.Getpid()), Version: s.base.Version}
	if w := s.workload.Load(); w != nil {
		response.TaskPid = uint32(w.Pids()[0])
	}
	return response, nil
}

// Shutdown ends the shim when no container is left. containerd calls it after every Delete.
func (s *Service) Shutdown(context.Context, *taskapi.ShutdownRequest) (*emptypb.Empty, error) {
	if s.workload.Load() == nil {
		s.shutdown()
	}
	return &emptypb.Empty{}, nil
}

var _ taskapi.TTRPCTaskService = (*Service)(nil)
