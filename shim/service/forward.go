package service

import (
	"context"
	"errors"
	"fmt"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/ttrpcutil"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
)

// errRefused is about an event that containerd will not take, however often it is sent.
var errRefused = errors.New("refused by containerd")

// forwarder sends events to containerd, one at a time, over a connection that it makes anew when that was lost.
type forwarder struct {
	client *ttrpcutil.Client
	lost   bool
}

func newForwarder(address string) (*forwarder, error) {
	client, err := ttrpcutil.NewClient(address)
	if err != nil {
		return nil, fmt.Errorf("events: %w", err)
	}
	return &forwarder{client: client}, nil
}

// forward returns nil when containerd has taken the event. Errors: errRefused; with any other the event may be sent again,
// though it can have arrived.
func (f *forwarder) forward(ctx context.Context, e *types.Envelope) error {
	if f.lost {
		if err := f.client.Reconnect(); err != nil {
			return err
		}
		f.lost = false
	}
	events, err := f.client.EventsService()
	if err != nil {
		return err
	}
	_, err = events.Forward(ctx, &eventsapi.ForwardRequest{Envelope: e})
	switch native := errgrpc.ToNative(err); {
	case err == nil:
		return nil
	case errdefs.IsInvalidArgument(native), errdefs.IsNotImplemented(native):
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	f.lost = true
	return err
}

func (f *forwarder) close() error { return f.client.Close() }
