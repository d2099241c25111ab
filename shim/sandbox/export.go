package sandbox

import (
	"context"
	"fmt"
	"os"

	shimv1 "github.com/hibernate-runtime/hibernate/api/shim/v1"
)

// ExportRootfs writes what the container has changed in its root file system to path, a file or pipe that is there, as a tar
// archive. These changes are in the sandbox's memory, where no snapshotter sees them; so it wakes. It returns the newest wake.
func (w *Workload) ExportRootfs(ctx context.Context, path string) (*shimv1.Transition, error) {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return nil, fmt.Errorf("export the root file system: %w: %w", ErrPrecondition, err)
	}
	defer out.Close()
	release, err := w.hold(ctx, "export")
	if err != nil {
		return nil, fmt.Errorf("export the root file system: %w", err)
	}
	defer release()
	if err := w.runsc.TarRootfsUpper(ctx, w.opts.ID, out); err != nil {
		return nil, fmt.Errorf("export the root file system: %w", err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last.wake, nil
}
