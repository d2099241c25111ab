package command

import (
	"context"
	"errors"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
	"github.com/hibernate-runtime/hibernate/daemon/shimclient"
)

// leave moves a workload to the other node, or has it sleep here.
func (d *drain) leave(ctx context.Context, w *drained) {
	moved, err := d.moveOne(ctx, w)
	if err == nil {
		w.Outcome, w.Detail = "moved", moved.GetNode()
		if c := moved.GetContainer(); c != "" {
			w.Detail += ", where it goes on in container " + c
		}
		return
	}
	if d.sleep(ctx, w); w.done() {
		w.Outcome, w.Detail = "not-moved", shimclient.Message(err)
	}
}

// moveOne is hibernatectl move.
func (d *drain) moveOne(ctx context.Context, w *drained) (moved *daemonv1.Moved, err error) {
	if w.record.Identity == "" {
		return nil, errors.New("it has no identity")
	}
	ctx, cancel := context.WithTimeout(ctx, moveTime+moveSlack)
	defer cancel()
	err = stream(ctx, d.options, func(c daemonv1.TTRPCDaemonClient) (interface {
		Recv() (*daemonv1.MoveResponse, error)
	}, error) {
		return c.Move(ctx, &daemonv1.MoveRequest{Namespace: w.Namespace, Id: w.ID, Node: d.to, TimeoutMs: moveTime.Milliseconds()})
	}, func(m *daemonv1.MoveResponse) (bool, error) {
		moved = m.GetMoved()
		return moved != nil, nil
	})
	return moved, err
}
