package runsc

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// RemoveRoot removes the root directory once its last container is deleted. The
// empty network namespace that runsc keeps mounted there, one for all sandboxes
// of the root, goes with it. A root that is not there is no error.
func (c *Client) RemoveRoot() error {
	pinned := filepath.Join(c.Root, "null-netns")
	for {
		// Sandboxes that boot at the same time stack their mounts.
		err := unix.Unmount(pinned, unix.MNT_DETACH)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unmount %s: %w", pinned, err)
		}
	}
	if err := os.RemoveAll(c.Root); err != nil {
		return fmt.Errorf("runsc root: %w", err)
	}
	return nil
}
