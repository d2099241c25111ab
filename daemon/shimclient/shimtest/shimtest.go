// Package shimtest is a shim for tests: the real service on a real ttrpc socket, with a workload that only pretends.
package shimtest

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// Shim is a fake shim.
type Shim struct {
	Namespace, ID string
	Address       string // of its ttrpc socket

	server   *ttrpc.Server
	listener *listener
	stop     context.CancelFunc
	stopped  context.Context // ends streams, which the server's end leaves open

	mu           sync.Mutex
	status       *shimv1.StatusResponse   // guarded by mu
	activity     *shimv1.ActivityResponse // guarded by mu
	watchers     map[chan *shimv1.Event]struct{}
	hang         chan struct{} // guarded by mu; not nil while it hangs
	wakes        []*shimv1.WakeRequest
	hibernations []*shimv1.HibernateRequest
	ends         []*shimv1.EndSleeperRequest
	fences       []*shimv1.FenceRequest
	samples      int
	unmeasured   error                                  // guarded by mu; what Activity answers
	run          map[string]func(context.Context) error // guarded by mu; by kind of transition
}

// Start serves a shim whose workload is awake, until the test ends.
func Start(t testing.TB, namespace, id string) *Shim {
	t.Helper()
	dir, err := os.MkdirTemp("", "shim") // t.TempDir may be too long for a socket's path
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "s")
	now := time.Now().UnixMilli()
	s := &Shim{
		Namespace: namespace, ID: id, Address: "unix://" + path, watchers: make(map[chan *shimv1.Event]struct{}),
		run: make(map[string]func(context.Context) error),
		status: &shimv1.StatusResponse{
			Namespace: namespace, Id: id, State: "awake", StateSinceUnixMs: now, CreatedUnixMs: now,
		},
		activity: &shimv1.ActivityResponse{
			State: "awake", StateSinceUnixMs: now, Mode: "auto", IdleTimeoutMs: 300_000, MinAwakeMs: 60_000,
		},
	}
	s.stopped, s.stop = context.WithCancel(context.Background())
	if s.server, err = ttrpc.NewServer(); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s.listener = &listener{Listener: socket}
	shimv1.RegisterTTRPCShimService(s.server, service{s})
	var serving sync.WaitGroup
	serving.Go(func() { _ = s.server.Serve(context.Background(), s.listener) })
	t.Cleanup(func() {
		s.Hang(false)
		s.Stop()
		serving.Wait()
		_ = os.RemoveAll(dir)
	})
	return s
}

// Stop ends the shim at once, as SIGKILL would.
func (s *Shim) Stop() {
	s.stop()
	_ = s.server.Close()
	s.listener.kill()
}

// Record writes the shim's record, with the test's own process as the shim's.
func (s *Shim) Record(t testing.TB, runDir string) {
	t.Helper()
	start, err := handover.StartTime(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	err = handover.WriteRecord(runDir, handover.Record{
		Namespace: s.Namespace, ID: s.ID, Address: s.Address, Pid: os.Getpid(), StartTime: start, Version: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
}

// OnHibernate sets what happens during hibernations; an error is the answer then. Without it they succeed at once.
func (s *Shim) OnHibernate(fn func(context.Context) error) { s.on("hibernate", fn) }

// OnWake is OnHibernate for wakes.
func (s *Shim) OnWake(fn func(context.Context) error) { s.on("wake", fn) }

func (s *Shim) on(kind string, fn func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run[kind] = fn
}

// Hang makes every call wait until it is told otherwise.
func (s *Shim) Hang(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on && s.hang == nil {
		s.hang = make(chan struct{})
	} else if !on && s.hang != nil {
		close(s.hang)
		s.hang = nil
	}
}

// Update changes what the shim answers, and tells its watchers.
func (s *Shim) Update(change func(*shimv1.StatusResponse, *shimv1.ActivityResponse)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.status, s.activity)
	s.announce(nil)
}

// Quietly changes the status and tells nobody.
func (s *Shim) Quietly(change func(*shimv1.StatusResponse)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(s.status)
}

// Unmeasured makes Activity answer with an error; nil ends that.
func (s *Shim) Unmeasured(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmeasured = err
}

// State changes the workload's state now.
func (s *Shim) State(state string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.move(state, nil)
}

// Wakes and Hibernations return the requests so far, Samples the number of calls of Activity.
func (s *Shim) Wakes() []*shimv1.WakeRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.wakes[:len(s.wakes):len(s.wakes)]
}

// Hibernations returns the requests so far.
func (s *Shim) Hibernations() []*shimv1.HibernateRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hibernations[:len(s.hibernations):len(s.hibernations)]
}

// Samples returns how often Activity was answered.
func (s *Shim) Samples() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.samples
}

// move changes the state. s.mu is held.
func (s *Shim) move(state string, transition *shimv1.Transition) {
	now := time.Now().UnixMilli()
	if since := s.status.StateSinceUnixMs; now <= since {
		now = since + 1
	}
	s.status.State, s.status.StateSinceUnixMs = state, now
	s.activity.State, s.activity.StateSinceUnixMs = state, now
	s.announce(transition)
}

// announce tells the watchers. s.mu is held.
func (s *Shim) announce(transition *shimv1.Transition) {
	for watcher := range s.watchers {
		select {
		case watcher <- s.event(transition):
		default:
		}
	}
}

func (s *Shim) event(transition *shimv1.Transition) *shimv1.Event {
	return &shimv1.Event{
		TimeUnixMs: time.Now().UnixMilli(), State: s.status.State, Transition: transition, Status: proto.CloneOf(s.status),
	}
}

// hung waits while the shim hangs.
func (s *Shim) hung(ctx context.Context) error {
	s.mu.Lock()
	hang := s.hang
	s.mu.Unlock()
	if hang == nil {
		return nil
	}
	select {
	case <-hang:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// transition does one: from a state through another to a third.
func (s *Shim) transition(ctx context.Context, kind, id, reason, via, to, outcome string) (*shimv1.Transition, error) {
	s.mu.Lock()
	from := s.status.State
	if from == to {
		defer s.mu.Unlock()
		return &shimv1.Transition{}, nil
	}
	s.move(via, nil)
	run := s.run[kind]
	s.mu.Unlock()
	started := time.Now()
	var err error
	if run != nil {
		err = run(ctx)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" {
		id = fmt.Sprintf("%s-%d", kind, started.UnixNano())
	}
	t := &shimv1.Transition{Id: id, Kind: kind, Reason: reason, Outcome: outcome, StartedUnixMs: started.UnixMilli(), TotalMs: 12.5}
	if err != nil {
		t.Outcome, t.Detail = "failed", err.Error()
	}
	s.keep(t)
	if err != nil {
		s.move(from, t)
		return nil, errgrpc.ToGRPC(err)
	}
	s.move(to, t)
	return t, nil
}

// keep puts a transition into the status, as the last of its kind. s.mu is held.
func (s *Shim) keep(t *shimv1.Transition) {
	if t.GetKind() == "wake" {
		s.status.LastWake = t
	} else {
		s.status.LastHibernate = t
	}
}

// Ends are the requests to end the sleeper that were granted.
func (s *Shim) Ends() []*shimv1.EndSleeperRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.ends)
}

// Fences are the requests to end an overtaken copy.
func (s *Shim) Fences() []*shimv1.FenceRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.fences)
}
