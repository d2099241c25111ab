package manager

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/v2/pkg/shim"
)

// cleanupTimeout leaves containerd's 5 s for a `delete` some room.
const cleanupTimeout = 4 * time.Second

// runner is what containerd's library asks of a shim.
type runner struct{ opts Options }

// Name is the runtime's name.
func (r runner) Name() string { return r.opts.Runtime }

// Start is never reached: Main answers `start` itself.
func (r runner) Start(context.Context, *bootstrap.BootstrapParams) (*bootstrap.BootstrapResult, error) {
	return nil, errors.New("start is not the library's to answer")
}

// Stop is `delete`.
func (r runner) Stop(ctx context.Context, id string) (shim.StopStatus, error) {
	bundle, err := bundleOf(ctx)
	if err != nil {
		return shim.StopStatus{}, fmt.Errorf("delete %s: %w", id, err)
	}
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	status, at, pid, err := r.opts.Cleanup(ctx, bundle)
	if err = errors.Join(err, removeStaleSocket(bundle)); err != nil {
		return shim.StopStatus{}, fmt.Errorf("delete %s: %w", id, err)
	}
	return shim.StopStatus{Pid: pid, ExitStatus: status, ExitedAt: at}, nil
}

// Info is `-info`. It looks at nothing, since containerd asks each runtime at its own start.
func (r runner) Info(context.Context, io.Reader) (*types.RuntimeInfo, error) {
	return &types.RuntimeInfo{
		Name:    r.opts.Runtime,
		Version: &types.RuntimeVersion{Version: r.opts.Version, Revision: r.opts.Revision},
	}, nil
}

// bundleOf returns the bundle of the call: what -bundle says, else the working directory.
func bundleOf(ctx context.Context) (string, error) {
	if opts, ok := ctx.Value(shim.OptsKey{}).(shim.Opts); ok && opts.BundlePath != "" {
		return filepath.Abs(opts.BundlePath)
	}
	return os.Getwd()
}
