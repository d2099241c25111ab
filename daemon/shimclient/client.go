// Package shimclient talks to one shim over its ttrpc socket, for the daemon and for hibernatectl.
//
// A Client keeps one connection and makes a new one when that is gone. Every request of the shim's service is
// idempotent, so one that was cut off is sent once more on a fresh connection. Errors are errdefs' (ErrNotFound,
// ErrFailedPrecondition, ErrAborted, …); a shim that can't be reached at all is ErrUnreachable.
package shimclient

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"google.golang.org/grpc/status"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// ErrUnreachable means that no connection could be made, or that it broke twice.
var ErrUnreachable = errors.New("shim is unreachable")

// ErrClosed is what a closed Client answers.
var ErrClosed = errors.New("client is closed")

// Client of one shim. Safe for concurrent use. A caller's context bounds each call.
type Client struct {
	address string

	mu     sync.Mutex
	conn   *ttrpc.Client // guarded by mu; nil until it is needed
	closed bool          // guarded by mu
}

// New returns a client for the shim at a ttrpc address such as unix:///run/containerd/s/…. It does not connect.
func New(address string) *Client {
	return &Client{address: address}
}

// Close ends the connection and every call on it.
func (c *Client) Close() error {
	c.mu.Lock()
	conn := c.conn
	c.conn, c.closed = nil, true
	c.mu.Unlock()
	if conn == nil {
		return nil
	}
	return conn.Close()
}

// Hibernate asks the shim to put its workload to sleep.
func (c *Client) Hibernate(ctx context.Context, req *shimv1.HibernateRequest) (*shimv1.HibernateResponse, error) {
	return call(ctx, c, "hibernate", shimv1.TTRPCShimClient.Hibernate, req)
}

// Wake asks the shim to wake its workload, and returns when that has ended.
func (c *Client) Wake(ctx context.Context, req *shimv1.WakeRequest) (*shimv1.WakeResponse, error) {
	return call(ctx, c, "wake", shimv1.TTRPCShimClient.Wake, req)
}

// ExportRootfs asks the shim to write the container's changes of its root file system.
func (c *Client) ExportRootfs(ctx context.Context, req *shimv1.ExportRootfsRequest) (*shimv1.ExportRootfsResponse, error) {
	return call(ctx, c, "export-rootfs", shimv1.TTRPCShimClient.ExportRootfs, req)
}

// Lease keeps the workload awake for a time, or ends that; it answers with all leases.
func (c *Client) Lease(ctx context.Context, req *shimv1.LeaseRequest) (*shimv1.LeaseResponse, error) {
	return call(ctx, c, "lease", shimv1.TTRPCShimClient.Lease, req)
}

// EndSleeper asks the shim to end a workload that nobody has woken, with its snapshot.
func (c *Client) EndSleeper(ctx context.Context, req *shimv1.EndSleeperRequest) (*shimv1.EndSleeperResponse, error) {
	return call(ctx, c, "end", shimv1.TTRPCShimClient.EndSleeper, req)
}

// Fork asks the shim to make workloads of what its own is now.
func (c *Client) Fork(ctx context.Context, req *shimv1.ForkRequest) (*shimv1.ForkResponse, error) {
	return call(ctx, c, "fork", shimv1.TTRPCShimClient.Fork, req)
}

// Fence asks the shim to end a copy of its workload that another node's has overtaken.
func (c *Client) Fence(ctx context.Context, req *shimv1.FenceRequest) (*shimv1.FenceResponse, error) {
	return call(ctx, c, "fence", shimv1.TTRPCShimClient.Fence, req)
}

// Status asks for all that the shim tells about its workload.
func (c *Client) Status(ctx context.Context) (*shimv1.StatusResponse, error) {
	return call(ctx, c, "status", shimv1.TTRPCShimClient.Status, &shimv1.StatusRequest{})
}

// Activity asks for what idleness is judged by.
func (c *Client) Activity(ctx context.Context) (*shimv1.ActivityResponse, error) {
	return call(ctx, c, "activity", shimv1.TTRPCShimClient.Activity, &shimv1.ActivityRequest{})
}

// Watch calls fn with each event, the present state first, until ctx is done or the connection breaks; it never returns
// nil. fn must be quick: the connection's other answers wait for it.
func (c *Client) Watch(ctx context.Context, fn func(*shimv1.Event)) error {
	conn, err := c.connection(ctx)
	if err != nil {
		return err
	}
	stream, err := shimv1.NewTTRPCShimClient(conn).Watch(ctx, &shimv1.WatchRequest{})
	if err != nil {
		c.drop(conn)
		return c.failure("watch", err)
	}
	for {
		event, err := stream.Recv()
		if errors.Is(err, io.EOF) { // of a connection that breaks, too, by the library's choice
			err = fmt.Errorf("%w: %w", ttrpc.ErrClosed, err)
		}
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, ttrpc.ErrClosed) {
				c.drop(conn) // nothing else ends the stream at the shim
			}
			return c.failure("watch", err)
		}
		fn(event)
	}
}

// call makes one unary call, and repeats it once when the connection turns out to be dead.
func call[Req, Resp any](ctx context.Context, c *Client, what string,
	method func(shimv1.TTRPCShimClient, context.Context, *Req) (*Resp, error), req *Req,
) (*Resp, error) {
	for attempt := 0; ; attempt++ {
		conn, err := c.connection(ctx)
		if err != nil {
			return nil, err
		}
		resp, err := method(shimv1.NewTTRPCShimClient(conn), ctx, req)
		if err == nil {
			return resp, nil
		}
		if !errors.Is(err, ttrpc.ErrClosed) {
			return nil, c.failure(what, err)
		}
		c.drop(conn)
		if attempt > 0 || ctx.Err() != nil {
			return nil, c.failure(what, err)
		}
	}
}

// connection returns the kept connection, or a new one. The lock is not held while dialing; of two that dial at the same
// time one keeps the other's.
func (c *Client) connection(ctx context.Context) (*ttrpc.Client, error) {
	if conn, err := c.kept(); conn != nil || err != nil {
		return conn, err
	}
	var dialer net.Dialer
	raw, err := dialer.DialContext(ctx, "unix", strings.TrimPrefix(c.address, "unix://"))
	if err != nil {
		return nil, fmt.Errorf("%w at %s: %w", ErrUnreachable, c.address, err)
	}
	conn := ttrpc.NewClient(raw)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.conn != nil {
		_ = conn.Close()
	}
	if c.closed {
		return nil, ErrClosed
	}
	if c.conn == nil {
		c.conn = conn
	}
	return c.conn, nil
}

func (c *Client) kept() (*ttrpc.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	return c.conn, nil
}

// drop forgets a connection that is of no use, unless a newer one has replaced it.
func (c *Client) drop(conn *ttrpc.Client) {
	c.mu.Lock()
	if c.conn == conn {
		c.conn = nil
	}
	c.mu.Unlock()
	_ = conn.Close()
}

// failure words an error of a call. Codes of the wire become errdefs' errors, or the context package's.
func (c *Client) failure(what string, err error) error {
	if errors.Is(err, ttrpc.ErrClosed) {
		return fmt.Errorf("%s: %w at %s: %w", what, ErrUnreachable, c.address, err)
	}
	if _, ok := status.FromError(err); ok {
		err = errgrpc.ToNative(err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// Message is the text of an error for a person, without the class that a call's error ends with.
func Message(err error) string {
	text := err.Error()
	for _, class := range []error{
		errdefs.ErrFailedPrecondition, errdefs.ErrAborted, errdefs.ErrNotFound, errdefs.ErrInvalidArgument, errdefs.ErrUnknown,
	} {
		text = strings.TrimSuffix(text, ": "+class.Error())
	}
	return text
}
