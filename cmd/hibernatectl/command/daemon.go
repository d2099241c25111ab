package command

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	daemonv1 "github.com/hibernate-runtime/hibernate/api/daemon/v1"
)

// daemonClient is the generated client's interface, for method expressions.
type daemonClient interface {
	List(context.Context, *daemonv1.ListRequest) (*daemonv1.ListResponse, error)
	WhyAwake(context.Context, *daemonv1.WhyAwakeRequest) (*daemonv1.WhyAwakeResponse, error)
	Wakes(context.Context, *daemonv1.WakesRequest) (*daemonv1.WakesResponse, error)
	Version(context.Context, *daemonv1.VersionRequest) (*daemonv1.VersionResponse, error)
	Node(context.Context, *daemonv1.NodeRequest) (*daemonv1.NodeResponse, error)
}

// daemonTimeout bounds one question to the daemon, which answers from memory.
const daemonTimeout = 2 * time.Second

// askDaemon makes one call. The error is errNoDaemon when nobody listens at the daemon's socket.
func askDaemon[Req, Resp any](ctx context.Context, runDir string,
	method func(daemonClient, context.Context, *Req) (*Resp, error), req *Req,
) (*Resp, error) {
	ctx, cancel := context.WithTimeout(ctx, daemonTimeout)
	defer cancel()
	client, err := dialDaemon(ctx, runDir)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	resp, err := method(daemonv1.NewTTRPCDaemonClient(client), ctx, req)
	if err != nil {
		return nil, fmt.Errorf("ask hibernated: %w", errgrpc.ToNative(err))
	}
	return resp, nil
}

// dialDaemon connects; the caller closes the client. The error is errNoDaemon when nobody listens.
func dialDaemon(ctx context.Context, runDir string) (*ttrpc.Client, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "unix", filepath.Join(runDir, "api.sock"))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDaemon, err)
	}
	return ttrpc.NewClient(conn), nil
}
