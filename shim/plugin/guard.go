package plugin

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
)

// guard runs one call. Its error gets the gRPC code that its errdefs class stands for, since NotFound and
// FailedPrecondition mean something to containerd's callers. A panic becomes an error of that one call: the shim's end
// would be the container's.
func guard(ctx context.Context, unmarshal ttrpc.Unmarshaler, info *ttrpc.UnaryServerInfo, call ttrpc.Method) (resp any, err error) {
	defer func() {
		if p := recover(); p != nil {
			log.G(ctx).Errorf("panic in %s: %v\n%s", info.FullMethod, p, debug.Stack())
			resp, err = nil, errgrpc.ToGRPC(fmt.Errorf("%s: panic: %v: %w", info.FullMethod, p, errdefs.ErrInternal))
		}
	}()
	resp, err = call(ctx, unmarshal)
	return resp, errgrpc.ToGRPC(err)
}
