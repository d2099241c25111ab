package server

import (
	"context"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/events"
)

// EventLog is the node's log of transitions.
type EventLog interface {
	// ID is the log's own: numbers count in it.
	ID() string
	// Since returns up to limit events after a number and not before a time (ms), and the cursor that goes on after them.
	Since(after uint64, sinceMs int64, limit int) ([]events.Event, uint64, error)
	// Changed returns a channel that is closed by the next event.
	Changed() <-chan struct{}
}

const (
	eventsAtOnce  = 500              // in one answer
	eventsWaitMax = 30 * time.Second // of one request
)

// Events implements the service.
func (a API) Events(ctx context.Context, req *daemonv1.EventsRequest) (*daemonv1.EventsResponse, error) {
	if a.Log == nil {
		return nil, errgrpc.ToGRPCf(errdefs.ErrUnavailable, "no log of events is kept: hibernated's own log says why")
	}
	wait := time.NewTimer(min(time.Duration(req.GetWaitMs())*time.Millisecond, eventsWaitMax))
	defer wait.Stop()
	for after := req.GetAfter(); ; {
		changed := a.Log.Changed()
		found, cursor, err := a.Log.Since(after, req.GetSinceUnixMs(), eventsAtOnce)
		if err != nil {
			return nil, errgrpc.ToGRPC(err)
		}
		after = cursor
		if len(found) == 0 {
			select {
			case <-changed:
				continue
			case <-wait.C:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		resp := &daemonv1.EventsResponse{Last: cursor, Log: a.Log.ID()}
		for _, e := range found {
			resp.Events = append(resp.Events, logged(e))
		}
		return resp, nil
	}
}

func logged(e events.Event) *daemonv1.LoggedEvent {
	return &daemonv1.LoggedEvent{
		Seq: e.Seq, TimeUnixMs: e.TimeMs, Namespace: e.Namespace, Id: e.ID, Identity: e.Identity, What: e.What, Transition: e.Transition,
		Reason: e.Reason, Outcome: e.Outcome, Detail: e.Detail, Ms: e.Ms, ImageBytes: e.ImageBytes,
	}
}
