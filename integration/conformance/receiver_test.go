package conformance

import (
	"context"
	"net"
	"sync"
	"testing"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/emptypb"
)

// An event is what a shim forwarded.
type event struct {
	topic, namespace string
	body             any
}

// A receiver is containerd's end of the events: it keeps them in the order in which they came.
type receiver struct {
	address string

	mu  sync.Mutex
	all []event
}

// receive serves a socket until the test ends.
func receive(t *testing.T, socket string) *receiver {
	t.Helper()
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{address: socket}
	eventsapi.RegisterTTRPCEventsService(server, r)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(context.Background(), l) }()
	t.Cleanup(func() { _ = server.Close(); <-done })
	return r
}

// Forward implements the service that shims send events to.
func (r *receiver) Forward(_ context.Context, f *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	e := f.GetEnvelope()
	body, err := typeurl.UnmarshalAny(e.GetEvent())
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, event{e.GetTopic(), e.GetNamespace(), body})
	return &emptypb.Empty{}, nil
}

// of are a container's events so far.
func (r *receiver) of(id string) []event {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []event
	for _, e := range r.all {
		if b, ok := e.body.(interface{ GetContainerID() string }); ok && b.GetContainerID() == id {
			out = append(out, e)
		}
	}
	return out
}

// topics are the last parts of a container's events' topics.
func (r *receiver) topics(id string) []string {
	var out []string
	for _, e := range r.of(id) {
		out = append(out, e.topic[len("/tasks/"):])
	}
	return out
}
