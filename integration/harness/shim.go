package harness

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hibernate-runtime/hibernate/api/handover"
	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// ErrNoRecord is about a workload that no shim has recorded.
var ErrNoRecord = errors.New("no shim has a record of it")

// Record is what a workload's shim wrote of itself.
func (w *World) Record(id string) (handover.Record, error) {
	records, err := handover.ListRecords(w.RunDir())
	for _, r := range records {
		if r.ID == id && r.Namespace == w.Namespace {
			return r, nil
		}
	}
	return handover.Record{}, fmt.Errorf("%s: %w", id, errors.Join(ErrNoRecord, err))
}

// Shim connects to a workload's shim. The caller closes the client by calling close.
func (w *World) Shim(ctx context.Context, id string) (client shimv1.TTRPCShimClient, close func(), err error) {
	r, err := w.Record(id)
	if err != nil {
		return nil, nil, err
	}
	socket := strings.TrimPrefix(r.Address, "unix://")
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", w.Path(socket))
	if err != nil {
		return nil, nil, fmt.Errorf("shim of %s: %w", id, err)
	}
	c := ttrpc.NewClient(conn)
	return shimv1.NewTTRPCShimClient(c), func() { c.Close() }, nil
}

// Hibernate puts a workload to sleep, as a person's request would.
func (w *World) Hibernate(ctx context.Context, id string) (*shimv1.Transition, error) {
	var t *shimv1.Transition
	err := w.withShim(ctx, id, func(ctx context.Context, c shimv1.TTRPCShimClient) error {
		r, err := c.Hibernate(ctx, &shimv1.HibernateRequest{Reason: "request", Manual: true})
		t = r.GetTransition()
		return err
	})
	return t, err
}

// Sleep is Hibernate, again for as long as it is aborted by traffic, as by the end of a connection just closed.
func (w *World) Sleep(ctx context.Context, id string) (*shimv1.Transition, error) {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	var t *shimv1.Transition
	var last error
	err := poll(ctx, 20*time.Millisecond, func() (bool, error) {
		t, last = w.Hibernate(ctx, id)
		return status.Code(last) != codes.Aborted, last
	})
	return t, errors.Join(err, last)
}

// Wake wakes a workload, and returns when it is awake.
func (w *World) Wake(ctx context.Context, id string) (*shimv1.Transition, error) {
	var t *shimv1.Transition
	err := w.withShim(ctx, id, func(ctx context.Context, c shimv1.TTRPCShimClient) error {
		r, err := c.Wake(ctx, &shimv1.WakeRequest{Reason: "request"})
		t = r.GetTransition()
		return err
	})
	return t, err
}

// Status never wakes.
func (w *World) Status(ctx context.Context, id string) (*shimv1.StatusResponse, error) {
	var s *shimv1.StatusResponse
	err := w.withShim(ctx, id, func(ctx context.Context, c shimv1.TTRPCShimClient) (err error) {
		s, err = c.Status(ctx, &shimv1.StatusRequest{})
		return err
	})
	return s, err
}

// WaitState waits until a workload is in a state, as asleep, and returns its status.
func (w *World) WaitState(ctx context.Context, id, state string) (*shimv1.StatusResponse, error) {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	var s *shimv1.StatusResponse
	err := poll(ctx, 10*time.Millisecond, func() (bool, error) {
		now, err := w.Status(ctx, id)
		if err != nil {
			return false, err
		}
		s = now
		if now.State != state {
			return false, fmt.Errorf("%s is %s, not %s; blockers: %v; last hibernate: %v", id, now.State, state, now.Blockers, now.LastHibernate)
		}
		return true, nil
	})
	return s, err
}

func (w *World) withShim(ctx context.Context, id string, call func(context.Context, shimv1.TTRPCShimClient) error) error {
	ctx, cancel := withDeadline(ctx, commandDeadline)
	defer cancel()
	client, done, err := w.Shim(ctx, id)
	if err != nil {
		return err
	}
	defer done()
	return call(ctx, client)
}
