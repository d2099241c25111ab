package conformance

import (
	"context"
	"net"
	"os"
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

	leave func() // ends serving; may be called again

	mu  sync.Mutex
	all []event
}

// receive serves a socket until the test ends.
func receive(t *testing.T, socket string) *receiver {
	t.Helper()
	r := &receiver{address: socket}
	r.serve(t)
	t.Cleanup(func() { r.leave() })
	return r
}

// serve begins to take events; after leave, again.
func (r *receiver) serve(t *testing.T) {
	t.Helper()
	if err := os.Remove(r.address); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: r.address})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // a containerd that was killed leaves its socket
	server, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	eventsapi.RegisterTTRPCEventsService(server, r)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(context.Background(), l) }()
	r.leave = func() { // once it has answered: what it hasn't is sent again
		ctx, cancel := context.WithTimeout(context.Background(), stepLimit)
		defer cancel()
		_ = server.Shutdown(ctx)
		_ = server.Close()
		<-done
	}
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
